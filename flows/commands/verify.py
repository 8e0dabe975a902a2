"""Re-hashing every checkpoint that a run keeps.

Invariant: a checkpoint is called valid only after every one of its bytes was read in this call. Reads only: what to do
about a damaged one is decided when the run goes on.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from storage.checkpoints.rereading import Rereader
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord
from tasks.pages.tables import Cell, Kind, Table, show_table
from tasks.scrubs.scrub import reread_seconds

ADVICE = "`holdfast run` sets damaged checkpoints aside by itself and goes on from the newest valid one."


def verify_run(store: Store, run: str) -> dict[str, Any]:
    """Which of the kept checkpoints are as they were written, JSON-able. Raises `RunMissingError`."""
    manifest = Manifest(store, run)
    state = manifest.load_head().state
    reader = Rereader(store, reread_seconds=reread_seconds(state))
    checkpoints = [_verify(reader, record) for record in state.kept]
    # A run in training drops old checkpoints meanwhile: what is no longer kept is not asked for.
    state = manifest.load_head().state
    still_kept = {f"{store.address}/{record.path}" for record in state.kept}
    checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint["path"] in still_kept]
    return {
        "run": run,
        "address": run_address(store, run),
        "valid": all(checkpoint["valid"] for checkpoint in checkpoints),
        "checkpoints": checkpoints,
        "set_aside": [record.model_dump(mode="json") for record in state.set_aside],
    }


def render_verification(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    title = Text(f"Checkpoints of {result['address']}", no_wrap=True, overflow="ignore")
    if not result["checkpoints"] and not result["set_aside"]:
        return Group(title, Text("None yet."))
    return Group(title, show_table(_list_checkpoints(result)), *([] if result["valid"] else [Text(f"\n{ADVICE}")]))


def _list_checkpoints(result: dict[str, Any]) -> Table:
    columns: list[tuple[str, Kind]] = [("Step", "number"), ("State", "outcome"), ("Checkpoint", "text")]
    rows = [
        [
            Cell(f"{checkpoint['step']:,}"),
            Cell("valid", key="completed") if checkpoint["valid"] else Cell("DAMAGED", key="lost"),
            Cell(checkpoint["reason"] or checkpoint["path"].removeprefix(f"{result['address']}/")),
        ]
        for checkpoint in result["checkpoints"]
    ]
    rows += [
        [Cell(f"{record['step']:,}"), Cell("set aside", key="preempted"), Cell(record["reason"])]
        for record in result["set_aside"]
    ]
    return Table(columns, rows)


def _verify(reader: Rereader, record: CheckpointRecord) -> dict[str, Any]:
    broken = reader.find_broken_files(record)
    return {
        "step": record.step,
        "path": f"{reader.store.address}/{record.path}",
        "digest": record.digest,
        "valid": not broken,
        "reason": " ".join(promise.message for promise in broken) or None,
    }
