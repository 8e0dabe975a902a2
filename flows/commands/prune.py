"""`holdfast prune`: the checkpoints that a run's policy drops, and what no run can use, deleted now and by hand.

Invariant: what goes is first no longer named by the manifest, then deleted. So a prune can be cut off anywhere, and the
next prune, promotion or segment finishes it; and it may run beside a segment, whose checkpoints it never touches
before they are promoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.errors import CorruptObjectError, IncompatibleRunError, ObjectUnreadableError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.checkpoints.checkpoints as checkpoints
    import storage.checkpoints.reading as holds
    import storage.checkpoints.strays as strays
    import storage.objects.addresses as addresses
    import storage.runs.manifest as manifests
    import storage.runs.retention as retention
    import storage.runs.transitions as transitions
    import tasks.config.load as settings
    import tasks.console.tables as tables
    import tasks.text as words
    import training.configuration as training_configuration

if TYPE_CHECKING:
    from storage.objects.store import Store
    from storage.runs.manifest import Generation
    from storage.runs.retention import RetentionDecision
    from storage.runs.run_state import RunState
    from tasks.console.tables import Kind


POLICY_FIELDS = {"keep", "keep_best", "keep_every_steps", "keep_bytes"}
CUT_OFF = "a save or a deletion that was interrupted"
NEVER_PROMOTED = "never promoted, or dropped earlier"


def prune(
    run: RunArgument,
    assignments: Assignments = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be deleted, and change nothing.")
    ] = False,
    quarantined: Annotated[
        bool,
        typer.Option("--quarantined", help="Also delete the files of checkpoints that earlier segments quarantined."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the checkpoints that a run no longer keeps.

    Which ones stay is decided by the checkpoint.keep fields that the run was last continued with; --set
    checkpoint.keep=2 and the like change them for this one call. The resume point, the one before it and what is being
    read always stay. Incomplete saves and checkpoints that were never promoted are deleted too. Safe while the run is
    in training.
    """
    store, name = find_run(run, assignments or [])
    print_result(prune_run(store, name, assignments or [], dry_run, quarantined), as_json, render_prune)


def prune_run(
    store: Store, run: str, assignments: Sequence[str] = (), dry_run: bool = False, quarantined: bool = False
) -> dict[str, Any]:
    """Apply the run's stored policy, changed by `assignments`; what went, what stayed, and why, JSON-able.

    Raises `RunMissingError`, `ConfigurationError`, or `ConflictError` if the run goes on at this very moment.
    """
    manifest = manifests.Manifest(store, run)
    head = manifest.load_head()
    policy, divergence = _read_policy(head.state, assignments)
    being_read = retention.find_being_read(head.state) | holds.find_held(store, run)
    decisions = retention.retain(head.state.kept, policy.retention(divergence), being_read)
    discarded = _find_discarded(store, head) if quarantined else {}
    result = _describe(store, head, decisions, discarded)
    if not dry_run:
        dropped = {decision.record.path for decision in decisions if not decision.is_kept}
        if dropped or discarded:
            head = manifest.commit("pruned", transitions.prune(dropped, discarded))
        strays.delete_strays(store, head)
    return result | {"dry_run": dry_run, "policy": policy.model_dump(include=POLICY_FIELDS)}


def render_prune(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    title = Text(f"Checkpoints of {result['address']}", no_wrap=True, overflow="ignore")
    table = _list_folders(result)
    policy = ", ".join(f"{name} = {value:,}" for name, value in result["policy"].items() if value is not None)
    return Group(
        title, Text(f"Policy: {policy}"), *([tables.show_table(table)] if table.rows else []), Text(_sum_up(result))
    )


def _list_folders(result: dict[str, Any]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [
        ("", "outcome"), ("Step", "text"), ("Size", "number"), ("Metric", "number"), ("Why", "text"),
    ]  # fmt: skip
    rows = [
        [
            mark,
            tables.Cell(f"{one['step']:,}"),
            tables.Cell(words.size(one["num_bytes"])),
            tables.Cell(words.score(one["metric"])),
            tables.Cell(one["reason"]),
        ]
        for mark, name in (
            (tables.Cell("keep", key="completed"), "kept"),
            (tables.Cell("delete", key="preempted"), "dropped"),
        )
        for one in result[name]
    ]
    for one in result["quarantined"] + result["leftovers"]:
        num_bytes = words.size(one["num_bytes"]) if one["num_bytes"] is not None else "unknown"
        folder = one["path"].rpartition("/")[2]
        rows.append([tables.Cell("delete", key="preempted"), *map(tables.Cell, (folder, num_bytes, "", one["reason"]))])
    return tables.Table(columns, rows)


def _sum_up(result: dict[str, Any]) -> str:
    gone = [entry for name in ("dropped", "quarantined", "leftovers") for entry in result[name]]
    stay = f"{words.count_of(len(result['kept']), 'checkpoint')} with {words.size(result['bytes_kept'])}"
    if not gone:
        return f"Nothing to delete: {stay}."
    at_least = "at least " if any(entry["num_bytes"] is None for entry in gone) else ""
    freed = f"{at_least}{words.size(result['bytes_freed'])}"
    if result["dry_run"]:
        return f"Would free {freed} and keep {stay}. Nothing was changed."
    return f"Freed {freed} and kept {stay}."


def _read_policy(
    state: RunState, assignments: Sequence[str]
) -> tuple[training_configuration.CheckpointConfig, training_configuration.DivergenceConfig]:
    """The stored policy and not a file's: the run may have been continued with --set to keep more than that."""
    values = settings.change_values(state.config, assignments)
    origin = f"checkpoint policy of run {state.run!r}"
    return (
        settings.configure(training_configuration.CheckpointConfig, values.get("checkpoint", {}), origin),
        settings.configure(training_configuration.DivergenceConfig, values.get("divergence", {}), origin),
    )


def _find_discarded(store: Store, head: Generation) -> dict[str, str]:
    """Folders of checkpoints that were quarantined and can be deleted, each with the reason.

    Not those of the segment that runs: when it ends, its newest checkpoints are looked at again.
    """
    reasons = {record.path: record.reason for record in head.state.quarantined if not record.is_discarded}
    without = head.model_copy(update={"state": transitions.prune((), reasons)(head.state, head.generation)})
    return {path: reasons[path] for path in strays.find_strays(store, without) if path in reasons}


def _describe(
    store: Store, head: Generation, decisions: Sequence[RetentionDecision], discarded: Mapping[str, str]
) -> dict[str, Any]:
    quarantined = [_describe_folder(store, path, f"quarantined: {reason}") for path, reason in discarded.items()]
    leftovers = [_describe_folder(store, path, NEVER_PROMOTED) for path in strays.find_strays(store, head)]
    kept = [_describe_decision(store, decision) for decision in decisions if decision.is_kept]
    dropped = [_describe_decision(store, decision) for decision in decisions if not decision.is_kept]
    return {
        "run": head.state.run,
        "address": addresses.run_address(store, head.state.run),
        "kept": kept,
        "dropped": dropped,
        "quarantined": quarantined,
        "leftovers": leftovers,
        "bytes_kept": sum(entry["num_bytes"] for entry in kept),
        "bytes_freed": sum(entry["num_bytes"] or 0 for entry in dropped + quarantined + leftovers),
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
    """A folder that no record describes: its size is in its index, if there is one."""
    num_bytes = None
    try:
        num_bytes = checkpoints.load_checkpoint(store, path).index.num_bytes
    except IncompatibleRunError:
        pass  # of another version's format
    except (CorruptObjectError, ObjectUnreadableError):
        reason = CUT_OFF if reason == NEVER_PROMOTED else reason
    return {"path": f"{store.address}/{path}", "num_bytes": num_bytes, "reason": reason}
