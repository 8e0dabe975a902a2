"""The command `stop`: a request in the store that whoever watches a run's ranks finds.

Invariant: it asks the segment that holds the lease now, and no later one; and it says that a segment has ended only
when the manifest does.
"""

import getpass
import os
import socket
import time

from flows.commands.status import describe_silence
from storage.errors import ConfigurationError
from storage.objects.store import Store
from storage.runs.holders import is_alive
from storage.runs.manifest import Manifest
from storage.runs.run_state import Lease, SegmentRecord
from storage.segment_notes import StopRecord, write_stop
from tasks.pages.words import duration
from tasks.remote.standing_still import describe_stopped
from tasks.telling.terminal import console

POLL_SECONDS = 1.0


def stop_run(store: Store, run: str, wait: bool) -> None:
    """Ask, and wait for the end. Raises `ConfigurationError` if nobody trains the run, `RunMissingError`."""
    manifest = Manifest(store, run)
    lease = _require_lease(manifest)
    asked_by = f"{_user()} on {socket.gethostname()}"
    write_stop(store, run, lease.fence, StopRecord(asked_by=asked_by, asked_at=time.time()))
    who = f"process {lease.holder.pid} on {lease.holder.host}"
    if not wait:
        print(f"Asked {who} to save and end.")
        return
    began = time.monotonic()
    with console.status(f"Asked {who} to save and end. Waiting for it; Ctrl-C stops the waiting alone"):
        while _holds(manifest, lease):
            _require_life(manifest, lease)
            time.sleep(POLL_SECONDS)  # the manifest tells the end to nobody who does not read it
    print(_describe_end(manifest, lease, time.monotonic() - began))


def _user() -> str:
    """In a container a user may have a number alone."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _require_lease(manifest: Manifest) -> Lease:
    lease = manifest.load_head().state.lease
    if lease is None:
        raise ConfigurationError(f"Nobody trains run {manifest.run!r} now, so there is nothing to stop.")
    _require_life(manifest, lease)
    return lease


def _require_life(manifest: Manifest, lease: Lease) -> None:
    """Raise `ConfigurationError` if the process that could hear the request is gone, or stands still."""
    stopped = describe_stopped(manifest.store, manifest.run, lease)
    if stopped is not None:
        raise ConfigurationError(f"Nobody can be asked to save and end. {stopped}")
    silence = describe_silence(manifest.store, manifest.load_head().state, lease)
    if silence is not None:
        raise ConfigurationError(f"Nobody can be asked to save and end. {silence}")
    if is_alive(lease.holder) is False:
        raise ConfigurationError(
            f"Run {manifest.run!r} is not in training: process {lease.holder.pid}, which trained it on this machine, "
            "is gone. `holdfast run` goes on with it from the last promoted checkpoint."
        )


def _holds(manifest: Manifest, lease: Lease) -> bool:
    held = manifest.load_head().state.lease
    return held is not None and held.fence == lease.fence


def _describe_end(manifest: Manifest, lease: Lease, seconds: float) -> str:
    state = manifest.load_head().state
    record = state.find_segment(lease.fence)
    if not isinstance(record, SegmentRecord):
        return f"The evaluation ended after {duration(seconds)}."
    point = state.promoted.step if state.promoted else 0
    return (
        f"Segment {record.fence} ended after {duration(seconds)}: {record.outcome}, at step {record.last_step:,}. "
        f"The run goes on from step {point:,}."
    )
