"""`holdfast stop`: a request in the store that the supervisor of a run's ranks finds.

Invariant: it asks the segment that holds the lease now, and no later one; and it reports that a segment has ended only
when the manifest does.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import getpass

    import storage.runs.holders as holders
    import storage.runs.manifest as manifests
    import storage.runs.run_state as run_state
    import storage.segment_notes as segment_notes
    import tasks.reporting.status as run_status
    import tasks.supervision.standing_still as standing_still
    import tasks.text as words

if TYPE_CHECKING:
    from storage.objects.store import Store


POLL_SECONDS = 1.0


def stop(
    run: RunArgument,
    assignments: Assignments = None,
    wait: Annotated[bool, typer.Option(help="Wait until it has saved and ended.")] = True,
    as_json: AsJson = False,
) -> None:
    """Ask the process that trains a run to save and end.

    From any machine that reaches the store, and nothing is lost. A schedule begins the run again at its next time:
    pause it first where that is not wanted.
    """
    found = stop_run(*find_run(run, assignments or []), wait)
    print_result(found, as_json, lambda found: str(found["message"]))


def stop_run(store: Store, run: str, wait: bool) -> dict[str, Any]:
    """Ask, and wait for the end; what came of it, JSON-able.

    Raises `ConfigurationError` if the run is not in training, `RunMissingError`.
    """
    manifest = manifests.Manifest(store, run)
    lease = _require_lease(manifest)
    asked_by = f"{_user()} on {socket.gethostname()}"
    segment_notes.write_stop(store, run, lease.fence, segment_notes.StopRecord(asked_by=asked_by, asked_at=time.time()))
    who = f"process {lease.holder.pid} on {lease.holder.host}"
    if not wait:
        return {"run": run, "asked": who, "ended": False, "message": f"Asked {who} to save and end."}
    began = time.monotonic()
    with console.status(f"Asked {who} to save and end. Waiting for it; Ctrl-C stops the waiting alone"):
        while _holds(manifest, lease):
            _require_life(manifest, lease)
            time.sleep(POLL_SECONDS)  # the end is seen only by reading the manifest
    message = _describe_end(manifest, lease, time.monotonic() - began)
    return {"run": run, "asked": who, "ended": True, "message": message}


def _user() -> str:
    """In a container a user may have a number alone."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _require_lease(manifest: manifests.Manifest) -> run_state.Lease:
    lease = manifest.load_head().state.lease
    if lease is None:
        raise ConfigurationError(f"Run {manifest.run!r} is not in training, so there is nothing to stop.")
    _require_life(manifest, lease)
    return lease


def _require_life(manifest: manifests.Manifest, lease: run_state.Lease) -> None:
    """Raise `ConfigurationError` if the process that could hear the request is gone, or stands still."""
    stopped = standing_still.describe_stopped(manifest.store, manifest.run, lease)
    if stopped is not None:
        raise ConfigurationError(f"No process can save and end now. {stopped}")
    silence = run_status.describe_silence(manifest.store, manifest.load_head().state, lease)
    if silence is not None:
        raise ConfigurationError(f"No process can save and end now. {silence}")
    if holders.is_alive(lease.holder) is False:
        raise ConfigurationError(
            f"Run {manifest.run!r} is not in training: process {lease.holder.pid}, which trained it on this machine, "
            "is gone. `holdfast run` goes on with it from the last promoted checkpoint."
        )


def _holds(manifest: manifests.Manifest, lease: run_state.Lease) -> bool:
    held = manifest.load_head().state.lease
    return held is not None and held.fence == lease.fence


def _describe_end(manifest: manifests.Manifest, lease: run_state.Lease, seconds: float) -> str:
    state = manifest.load_head().state
    record = state.find_segment(lease.fence)
    if not isinstance(record, run_state.SegmentRecord):
        return f"The evaluation ended after {words.duration(seconds)}."
    point = state.promoted.step if state.promoted else 0
    return (
        f"Segment {record.fence} ended after {words.duration(seconds)}: {record.outcome}, at step "
        f"{record.last_step:,}. The run goes on from step {point:,}."
    )
