"""Deleting what a run no longer keeps, now and by hand: the checkpoints its policy drops, and what nobody can use.

Invariant: what goes is first no longer named by the manifest, then deleted. So a prune can be cut off anywhere, and the
next prune, promotion or segment finishes it; and it may run beside a segment, whose checkpoints it never touches
before they are promoted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from storage.checkpoints.checkpoints import load_checkpoint
from storage.checkpoints.reading import find_held
from storage.checkpoints.strays import delete_strays, find_strays
from storage.errors import CorruptObjectError, IncompatibleRunError, ObjectUnreadableError
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Generation, Manifest
from storage.runs.retention import RetentionDecision, find_being_read, retain
from storage.runs.run_state import RunState
from storage.runs.transitions import prune
from tasks.pages.tables import Cell, Kind, Table, show_table
from tasks.pages.words import count_of, score, size
from tasks.settings.reading import change_values, configure
from training.configuration import CheckpointConfig, DivergenceConfig

POLICY_FIELDS = {"keep", "keep_best", "keep_every_steps", "keep_bytes"}
CUT_OFF = "a save or a deletion that was interrupted"
NEVER_PROMOTED = "never promoted, or dropped earlier"


def prune_run(
    store: Store, run: str, assignments: Sequence[str] = (), dry_run: bool = False, set_aside: bool = False
) -> dict[str, Any]:
    """Apply the run's stored policy, changed by `assignments`; what went, what stayed, and why, JSON-able.

    Raises `RunMissingError`, `ConfigurationError`, or `ConflictError` if the run goes on at this very moment.
    """
    manifest = Manifest(store, run)
    head = manifest.load_head()
    policy, divergence = _read_policy(head.state, assignments)
    being_read = find_being_read(head.state) | find_held(store, run)
    decisions = retain(head.state.kept, policy.retention(divergence), being_read)
    discarded = _find_discarded(store, head) if set_aside else {}
    result = _describe(store, head, decisions, discarded)
    if not dry_run:
        dropped = {decision.record.path for decision in decisions if not decision.is_kept}
        if dropped or discarded:
            head = manifest.commit("pruned", prune(dropped, discarded))
        delete_strays(store, head)
    return result | {"dry_run": dry_run, "policy": policy.model_dump(include=POLICY_FIELDS)}


def render_prune(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    title = Text(f"Checkpoints of {result['address']}", no_wrap=True, overflow="ignore")
    table = _list_folders(result)
    policy = ", ".join(f"{name} = {value:,}" for name, value in result["policy"].items() if value is not None)
    return Group(title, Text(f"Policy: {policy}"), *([show_table(table)] if table.rows else []), Text(_sum_up(result)))


def _list_folders(result: dict[str, Any]) -> Table:
    columns: list[tuple[str, Kind]] = [
        ("", "outcome"), ("Step", "text"), ("Size", "number"), ("Metric", "number"), ("Why", "text"),
    ]  # fmt: skip
    rows = [
        [mark, Cell(f"{one['step']:,}"), Cell(size(one["num_bytes"])), Cell(score(one["metric"])), Cell(one["reason"])]
        for mark, name in ((Cell("keep", key="completed"), "kept"), (Cell("delete", key="preempted"), "dropped"))
        for one in result[name]
    ]
    for one in result["set_aside"] + result["leftovers"]:
        num_bytes = size(one["num_bytes"]) if one["num_bytes"] is not None else "unknown"
        folder = one["path"].rpartition("/")[2]
        rows.append([Cell("delete", key="preempted"), *map(Cell, (folder, num_bytes, "", one["reason"]))])
    return Table(columns, rows)


def _sum_up(result: dict[str, Any]) -> str:
    gone = [entry for name in ("dropped", "set_aside", "leftovers") for entry in result[name]]
    stay = f"{count_of(len(result['kept']), 'checkpoint')} with {size(result['bytes_kept'])}"
    if not gone:
        return f"Nothing to delete: {stay}."
    at_least = "at least " if any(entry["num_bytes"] is None for entry in gone) else ""
    freed = f"{at_least}{size(result['bytes_freed'])}"
    if result["dry_run"]:
        return f"Would free {freed} and keep {stay}. Nothing was changed."
    return f"Freed {freed} and kept {stay}."


def _read_policy(state: RunState, assignments: Sequence[str]) -> tuple[CheckpointConfig, DivergenceConfig]:
    """The stored policy and not a file's: the run may have been continued with --set to keep more than that."""
    values = change_values(state.config, assignments)
    origin = f"checkpoint policy of run {state.run!r}"
    return (
        configure(CheckpointConfig, values.get("checkpoint", {}), origin),
        configure(DivergenceConfig, values.get("divergence", {}), origin),
    )


def _find_discarded(store: Store, head: Generation) -> dict[str, str]:
    """Folders of checkpoints that were set aside and can be deleted, each with the reason.

    Not those of the segment that runs: when it ends, its newest checkpoints are looked at again.
    """
    reasons = {record.path: record.reason for record in head.state.set_aside if not record.is_discarded}
    without = head.model_copy(update={"state": prune((), reasons)(head.state, head.generation)})
    return {path: reasons[path] for path in find_strays(store, without) if path in reasons}


def _describe(
    store: Store, head: Generation, decisions: Sequence[RetentionDecision], discarded: Mapping[str, str]
) -> dict[str, Any]:
    set_aside = [_describe_folder(store, path, f"set aside: {reason}") for path, reason in discarded.items()]
    leftovers = [_describe_folder(store, path, NEVER_PROMOTED) for path in find_strays(store, head)]
    kept = [_describe_decision(store, decision) for decision in decisions if decision.is_kept]
    dropped = [_describe_decision(store, decision) for decision in decisions if not decision.is_kept]
    return {
        "run": head.state.run,
        "address": run_address(store, head.state.run),
        "kept": kept,
        "dropped": dropped,
        "set_aside": set_aside,
        "leftovers": leftovers,
        "bytes_kept": sum(entry["num_bytes"] for entry in kept),
        "bytes_freed": sum(entry["num_bytes"] or 0 for entry in dropped + set_aside + leftovers),
    }


def _describe_decision(store: Store, decision: RetentionDecision) -> dict[str, Any]:
    record = decision.record
    return {
        "step": record.step,
        "path": f"{store.address}/{record.path}",
        "num_bytes": record.num_bytes,
        "metric": record.metric,
        "reason": decision.reason,
    }


def _describe_folder(store: Store, path: str, reason: str) -> dict[str, Any]:
    """A folder that no record describes: how large it is, its index says, if there is one."""
    num_bytes = None
    try:
        num_bytes = load_checkpoint(store, path).index.num_bytes
    except IncompatibleRunError:
        pass  # of another version's format
    except (CorruptObjectError, ObjectUnreadableError):
        reason = CUT_OFF if reason == NEVER_PROMOTED else reason
    return {"path": f"{store.address}/{path}", "num_bytes": num_bytes, "reason": reason}
