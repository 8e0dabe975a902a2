"""At the end of a flow: the tracker gets what it has not got yet, and the files of the run.

Invariant: however the flow ends, what ended it is what its caller hears of. It waits as long as the tracker gets on,
and a few time limits longer; a tracker that does not answer costs one warning.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context

from storage.errors import (
    HoldfastError,
    LedgerViolationError,
    ObjectMissingError,
    QualityGateError,
    RunDivergedError,
    RunStoppedError,
    SegmentFailedError,
)
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.store import Store
from tasks.configuration.tracking import TrackingConfig
from tasks.tracking.description import describe_checkpoints, describe_model
from tasks.tracking.mlflow_server import MlflowServer
from tasks.tracking.points import Snapshot
from tasks.tracking.recorder import END_SECONDS, Keeper, wanted_of
from tasks.tracking.sending import Sender
from tasks.tracking.trouble import Warn, has_recovered, warn_of_trouble

# What ends a flow and leaves a run behind that got on.
ENDS = (RunStoppedError, SegmentFailedError, RunDivergedError, QualityGateError, LedgerViolationError)
# Time limits without an answer after which a tracker is given up.
PATIENCE = 2.5
LONGEST_SECONDS = 600.0


@contextmanager
def sending_the_rest(config: TrackingConfig, open_store: Callable[[], Store], run: str, warn: Warn) -> Iterator[None]:
    """Send what is missing when the block is left, also by one of `ENDS`."""
    try:
        yield
    except ENDS as end:
        # Who asked a run to stop may take the machine away soon; the next flow sends the rest.
        longest = END_SECONDS if isinstance(end, RunStoppedError) else LONGEST_SECONDS
        _send_the_rest(config, open_store, run, warn, longest)
        raise
    _send_the_rest(config, open_store, run, warn, LONGEST_SECONDS)


def _send_the_rest(
    config: TrackingConfig, open_store: Callable[[], Store], run: str, warn: Warn, longest_seconds: float
) -> None:
    if not config.is_on:
        return
    try:
        store = open_store()
        snapshot = Keeper(config, store, run).keep({}, is_last=True)
    except (HoldfastError, OSError) as error:
        warn(f"Not all figures of the run could be kept for its trackers; the same command run again does it: {error}")
        return
    if config.kind == "mlflow":
        _send(config, store, snapshot, warn, longest_seconds)


def _send(config: TrackingConfig, store: Store, snapshot: Snapshot, warn: Warn, longest_seconds: float) -> None:
    """In a thread, so that an answer that never comes is not waited for."""
    server, context = MlflowServer(config), copy_context()
    sender = Sender(server)

    def work() -> None:
        try:
            files = _files_of(store, snapshot)
            sender.send(wanted_of(store, snapshot, config.run_name, files))
            has_recovered(server.address)
        except HoldfastError as error:
            warn_of_trouble(server.address, error, warn)

    thread = threading.Thread(target=lambda: context.run(work), name="tracker", daemon=True)
    thread.start()
    _wait(thread, sender, PATIENCE * config.timeout_seconds, longest_seconds)
    if thread.is_alive():
        warn_of_trouble(server.address, f"The tracker at {server.address} takes too long.", warn)
    sender.abandon()


def _wait(thread: threading.Thread, sender: Sender, patience_seconds: float, longest_seconds: float) -> None:
    """Until it has ended, or no call of it has for so long."""
    now = heard = time.monotonic()
    end, num_calls = now + longest_seconds, sender.num_calls
    while thread.is_alive() and now < min(end, heard + patience_seconds):
        thread.join(0.1)
        now = time.monotonic()
        if sender.num_calls != num_calls:
            num_calls, heard = sender.num_calls, now


def _files_of(store: Store, snapshot: Snapshot) -> dict[str, bytes]:
    """The checkpoints that are kept, the final model once there is one, and the report if it was written."""
    state = snapshot.state
    files = {"checkpoints.json": describe_checkpoints(store, state)}
    model = describe_model(store, state)
    if model is not None:
        files["model.json"] = model
    with suppress(ObjectMissingError):
        files["report.html"] = store.read(f"{RUNS_FOLDER}/{state.run}/report.html")
    return files
