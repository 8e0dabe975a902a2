"""`holdfast verify`: every checkpoint that a run keeps, hashed again.

Invariant: a checkpoint is called valid only after every one of its bytes was read in this call. Reads only: what to do
about a damaged one is decided when the run goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.checkpoints.rereading as rereading
    import storage.objects.addresses as addresses
    import storage.runs.manifest as manifests
    import tasks.console.tables as tables
    import tasks.verification.scrubbing as scrubs

if TYPE_CHECKING:
    from storage.objects.store import Store
    from storage.runs.run_state import CheckpointRecord
    from tasks.console.tables import Kind


ADVICE = "`holdfast run` quarantines damaged checkpoints by itself and goes on from the newest valid one."


def verify(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Hash every checkpoint that is kept and report which are valid. Exit code 1 if one is not."""
    found = verify_run(*find_run(run, assignments or []))
    print_result(found, as_json, render_verification)
    if not found["valid"]:
        raise typer.Exit(1)


def verify_run(store: Store, run: str) -> dict[str, Any]:
    """Which of the kept checkpoints are as they were written, JSON-able. Raises `RunMissingError`."""
    manifest = manifests.Manifest(store, run)
    state = manifest.load_head().state
    reader = rereading.Rereader(store, reread_seconds=scrubs.reread_seconds(state))
    checkpoints = [_verify(reader, record) for record in state.kept]
    # A run in training drops old checkpoints meanwhile: what is no longer kept is not asked for.
    state = manifest.load_head().state
    still_kept = {f"{store.address}/{record.path}" for record in state.kept}
    checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint["path"] in still_kept]
    return {
        "run": run,
        "address": addresses.run_address(store, run),
        "valid": all(checkpoint["valid"] for checkpoint in checkpoints),
        "checkpoints": checkpoints,
        "quarantined": [record.model_dump(mode="json") for record in state.quarantined],
    }


def render_verification(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    title = Text(f"Checkpoints of {result['address']}", no_wrap=True, overflow="ignore")
    if not result["checkpoints"] and not result["quarantined"]:
        return Group(title, Text("None yet."))
    return Group(
        title, tables.show_table(_list_checkpoints(result)), *([] if result["valid"] else [Text(f"\n{ADVICE}")])
    )


def _list_checkpoints(result: dict[str, Any]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [("Step", "number"), ("State", "outcome"), ("Checkpoint", "text")]
    rows = [
        [
            tables.Cell(f"{checkpoint['step']:,}"),
            tables.Cell("valid", key="completed") if checkpoint["valid"] else tables.Cell("DAMAGED", key="lost"),
            tables.Cell(checkpoint["reason"] or checkpoint["path"].removeprefix(f"{result['address']}/")),
        ]
        for checkpoint in result["checkpoints"]
    ]
    rows += [
        [tables.Cell(f"{record['step']:,}"), tables.Cell("quarantined", key="preempted"), tables.Cell(record["reason"])]
        for record in result["quarantined"]
    ]
    return tables.Table(columns, rows)


def _verify(reader: rereading.Rereader, record: CheckpointRecord) -> dict[str, Any]:
    broken = reader.find_broken_files(record) + reader.find_broken_frozen(record)
    return {
        "step": record.step,
        "path": f"{reader.store.address}/{record.path}",
        "digest": record.digest,
        "valid": not broken,
        "reason": " ".join(promise.message for promise in broken) or None,
    }
