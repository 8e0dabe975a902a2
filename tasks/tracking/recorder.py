"""Tracking beside a segment: two threads of the supervising process, one for what is kept, one for what is sent.

Invariant: the supervisor of the ranks waits for neither of them while they train, and at the segment's end only for
seconds, and not at all for a server that did not answer before. What was measured is in the store before it is sent.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Literal

from storage.errors import HoldfastError
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord
from tasks.background import BackgroundThread
from tasks.configuration.tracking import TrackingConfig
from tasks.tracking.csv_file import write_csv
from tasks.tracking.description import identity_of, parameters_of, status_of, tags_of
from tasks.tracking.machine import Averages, Machine
from tasks.tracking.marks import Marks, read_marks, write_marks
from tasks.tracking.mlflow_server import MlflowServer
from tasks.tracking.points import Snapshot, read_points
from tasks.tracking.sending import Sender, Wanted
from tasks.tracking.tensorboard_files import write_events
from tasks.tracking.tracker import Tracker
from tasks.tracking.trouble import Warn, has_recovered, warn_of_trouble
from training.metrics.reporter import Report

MEASURE_SECONDS = 10.0
# Files are written anew so seldom that it takes one part in so many of the time.
FILES_SHARE = 50
FILES_SECONDS = 60.0
# At the end of a segment, for a server that has answered so far.
END_SECONDS = 10.0


class Recorder(BackgroundThread):
    """Keeps a mark for each promotion, and the files. An `Audience` of the segment; its methods return at once."""

    def __init__(
        self,
        config: TrackingConfig,
        store: Store,
        run: str,
        warn: Warn,
        has_machine: bool,
        then: Callable[[Snapshot], None],
    ) -> None:
        """`has_machine`: ranks run on this machine. `then` is called with each snapshot that is in the store."""
        super().__init__("tracking")
        self._keeper = Keeper(config, store, run)
        self._is_last = False
        self._warn, self._then = warn, then
        self._machine = Machine() if has_machine else None
        self._averages = Averages()
        self._events: SimpleQueue[Mapping[str, float] | Literal["promoted", "end"]] = SimpleQueue()

    def show(self, report: Report) -> None:
        """Take over how fast the ranks are."""
        if report.throughput is not None:
            self._events.put(report.throughput.model_dump())

    def promoted(self, _record: CheckpointRecord) -> None:
        """There is a new resume point."""
        self._events.put("promoted")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.put("end")
        super().__exit__(kind, error, trace)

    def _accompany(self) -> None:
        self._record()  # what came about since the last look
        while not self._is_last:
            try:
                event = self._events.get(timeout=MEASURE_SECONDS)
            except Empty:
                self._averages.add(self._machine.measure() if self._machine is not None else {})
                continue
            if isinstance(event, str):
                self._is_last = event == "end"
                self._record()
            else:
                self._averages.add(event)

    def _record(self) -> None:
        if self._machine is not None:
            self._averages.add(self._machine.measure())
        try:
            snapshot = self._keeper.keep(self._averages.take(), is_last=self._is_last)
        except (HoldfastError, OSError) as error:
            self._warn(f"The figures of this promotion could not be kept, and are kept with the next one: {error}")
        else:
            self._then(snapshot)


class Keeper:
    """What a run's store has for those who track it: the marks, and files."""

    def __init__(self, config: TrackingConfig, store: Store, run: str) -> None:
        self._config, self._store, self._run = config, store, run
        self._marks: Marks | None = None
        self._written: Marks | None = None
        self._files_at = 0.0

    def keep(self, figures: Mapping[str, float], is_last: bool) -> Snapshot:
        """Note where the run stands. Raises `StoreError`, and `RunMissingError` if it was never begun."""
        state = Manifest(self._store, self._run).load_head().state
        if self._marks is None:
            self._marks = self._written = read_marks(self._store, self._run)
        marks = self._marks = self._marks.with_mark_of(state, figures)
        if marks != self._written:
            marks = self._marks = self._written = write_marks(self._store, self._run, marks)
        snapshot = Snapshot(state, marks)
        if self._config.files and (is_last or time.monotonic() >= self._files_at):
            self._write_files(snapshot)
        return snapshot

    def _write_files(self, snapshot: Snapshot) -> None:
        began = time.monotonic()
        if "csv" in self._config.files:
            write_csv(self._store, self._run, read_points(self._store, snapshot))
        if "tensorboard" in self._config.files:
            write_events(self._store, snapshot)
        ended = time.monotonic()
        self._files_at = ended + max(FILES_SECONDS, FILES_SHARE * (ended - began))


class Sending:
    """The thread that sends. A context manager; when it is left the thread may still wait for its last answer."""

    def __init__(self, tracker: Tracker, store: Store, name: str | None, warn: Warn) -> None:
        self._sender = Sender(tracker)
        self._address = tracker.address
        self._store, self._name, self._warn = store, name, warn
        self._newest: Snapshot | None = None
        self._changed = threading.Condition()
        self._is_over = False
        self._is_in_trouble = False
        context = copy_context()  # by which Prefect knows the flow run
        self._thread = threading.Thread(target=lambda: context.run(self._work), name="tracker", daemon=True)

    def offer(self, snapshot: Snapshot) -> None:
        """Send this, and what was not sent before."""
        with self._changed:
            self._newest = snapshot
            self._changed.notify()

    def __enter__(self) -> "Sending":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if not self._is_in_trouble:
            self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            why = f"The tracker at {self._address} has not taken all that there was within {END_SECONDS:.0f} s."
            warn_of_trouble(self._address, why, self._warn)
        self._sender.abandon()

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            try:
                self._sender.send(wanted_of(self._store, snapshot, self._name))
                self._is_in_trouble = False
                has_recovered(self._address)
            except Exception as error:  # noqa: BLE001 - what a tracker's answer leads to ends no thread
                self._is_in_trouble = True
                warn_of_trouble(self._address, error, self._warn)

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_over)
            snapshot, self._newest = self._newest, None
            return snapshot


def wanted_of(store: Store, snapshot: Snapshot, name: str | None, files: Mapping[str, bytes] | None = None) -> Wanted:
    """What a tracker should have of a run, under the run's own name unless it is given another."""
    state = snapshot.state
    status = status_of(state)
    return Wanted(
        identity=identity_of(state),
        name=name or state.run,
        snapshot=snapshot,
        points_after=lambda step: read_points(store, snapshot, step),
        parameters=parameters_of(state),
        tags=tags_of(store, state),
        status=status,
        ended_at=round(1000 * snapshot.marks.marks[-1].at) if status == "FINISHED" and snapshot.marks.marks else None,
        files=files or {},
    )


class Silent:
    """An `Audience` that does nothing."""

    def show(self, report: Report) -> None:
        """Nothing."""

    def promoted(self, record: CheckpointRecord) -> None:
        """Nothing."""


@contextmanager
def tracking(
    config: TrackingConfig, store: Store, run: str, warn: Warn, has_machine: bool
) -> Iterator[Recorder | Silent]:
    """Around a segment, to which what it yields has to listen."""
    if not config.is_on:
        yield Silent()
        return
    if config.kind == "none":
        with Recorder(config, store, run, warn, has_machine, lambda _: None) as recorder:
            yield recorder
        return
    with (
        Sending(MlflowServer(config), store, config.run_name, warn) as sending,
        Recorder(config, store, run, warn, has_machine, sending.offer) as recorder,
    ):
        yield recorder
