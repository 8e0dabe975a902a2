"""All that reads a run which people have: what `status`, `logs`, a report, an audit or the next segment ask of it.

Invariant: each reader first loads what does not depend on the run, and what it gives then does the reading.
"""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flows.commands.logs import print_logs
from storage.datasets import load_dataset
from storage.runs.manifest import Manifest
from tasks.audits.verdict import audit_run
from tasks.cluster.reports import ReportFollower, read_last_reports
from tasks.configuration.tracking import TrackingConfig
from tasks.drills.records import read_trained_run
from tasks.recovery.settle import recover_run
from tasks.reporting.all_runs import list_runs
from tasks.reporting.status import read_status
from tasks.reporting.written import read_history, write_report
from tasks.supervision.launch import find_folder
from tasks.tracking.description import ID_TAG, Status, identity_of
from tasks.tracking.marks import read_marks, write_marks
from tasks.tracking.points import Point
from tasks.tracking.recorder import Keeper, wanted_of
from tasks.tracking.sending import Sender
from tasks.tracking.tracker import TrackedRun
from tests.helpers.long_runs import FIGURES, RUN, LongRun

Read = Callable[[], object]
Reader = Callable[[LongRun], Read]


class LastSteps:
    """A `Tracker` with one run, of which it keeps only how far each metric has come."""

    address = "http://tracker"

    def __init__(self, identity: str, last_step: int | None, keys: Sequence[str]) -> None:
        last_steps = {} if last_step is None else dict.fromkeys(keys, last_step)
        self.run = TrackedRun("run", 0, "RUNNING", {ID_TAG: identity}, {}, last_steps, "files")
        self.num_points = 0

    def find_runs(self, identity: str) -> list[TrackedRun]:
        return [self.run] if self.run.tags[ID_TAG] == identity else []

    def create_run(self, name: str, started_at: int, tags: Mapping[str, str]) -> TrackedRun:
        raise AssertionError("there is one")

    def log(self, run_id: str, points: Sequence[Point], parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self.num_points += len(points)
        last_steps = {**self.run.last_steps, **{point.key: point.step for point in points}}
        self.run = replace(self.run, last_steps=last_steps, tags={**self.run.tags, **tags})

    def set_status(self, run_id: str, status: Status, ended_at: int | None) -> None:
        self.run = replace(self.run, status=status)

    def put_file(self, run: TrackedRun, name: str, data: bytes) -> None:
        """Nothing is kept."""

    def delete_run(self, run_id: str) -> None:
        raise AssertionError("there is one")


def _head(run: LongRun) -> Read:
    return lambda: Manifest(run.store, RUN).load_head()


def _head_again(run: LongRun) -> Read:
    manifest = run.paths.manifest
    manifest.load_head()
    return manifest.load_head


def _logs(run: LongRun) -> Read:
    fence = run.paths.manifest.load_head().state.segments[-1].fence

    def read() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            print_logs(run.store, RUN, fence, None)

    return read


def _report(run: LongRun) -> Read:
    state = run.paths.manifest.load_head().state
    dataset = load_dataset(run.store, state.dataset_digest, state.dataset_sha256)
    return lambda: write_report(run.store, state, dataset)


def _history(run: LongRun) -> Read:
    state = run.paths.manifest.load_head().state
    return lambda: read_history(run.store, state)


def _drill(run: LongRun) -> Read:
    return lambda: read_trained_run(run.store, RUN, {})


def _reports_behind(run: LongRun) -> Read:
    lease = run.paths.manifest.load_head().state.lease
    assert lease is not None
    path = find_folder(run.paths, lease) / "progress.jsonl"

    def read() -> int:
        return sum(1 for _ in ReportFollower(path).read())

    return read


def _last_reports(run: LongRun) -> Read:
    lease = run.paths.manifest.load_head().state.lease
    assert lease is not None
    path = find_folder(run.paths, lease) / "progress.jsonl"
    return lambda: read_last_reports(path)


def _promotion(run: LongRun) -> Read:
    """Tracking of one promotion, which the tracker has not yet."""
    marks = read_marks(run.store, RUN)
    write_marks(run.store, RUN, marks.model_copy(update={"marks": marks.marks[:-1]}))
    keeper, state = Keeper(TrackingConfig(kind="none"), run.store, RUN), run.paths.manifest.load_head().state
    keys = ["loss", "learning_rate", "gradient_norm", *FIGURES]
    tracker = LastSteps(identity_of(state), marks.marks[-2].step, keys)

    def read() -> int:
        snapshot = keeper.keep(marks.marks[-1].figures, is_last=False)
        Sender(tracker).send(wanted_of(run.store, snapshot, None))
        return tracker.num_points

    return read


def _all_points(run: LongRun) -> Read:
    """All that is sent to a tracker that was away from the beginning on."""
    state = run.paths.manifest.load_head().state
    tracker = LastSteps(identity_of(state), None, [])
    keeper = Keeper(TrackingConfig(kind="none"), run.store, RUN)

    def read() -> int:
        Sender(tracker).send(wanted_of(run.store, keeper.keep({}, is_last=False), None))
        return tracker.num_points

    return read


def _metrics_file(run: LongRun) -> Read:
    keeper = Keeper(TrackingConfig(kind="none", files=["csv"]), run.store, RUN)
    return lambda: keeper.keep({}, is_last=True)


def _next_segment(run: LongRun) -> Read:
    return lambda: recover_run(run.config, run.paths)


# Those that leave the run as it is, and then the one that goes on with it.
READERS: dict[str, Reader] = {
    "the head, first look": _head,
    "the head, next look": _head_again,
    "status": lambda run: lambda: read_status(run.store, RUN),
    "runs": lambda run: lambda: list_runs(run.store),
    "logs of an ended segment": _logs,
    "loss curve": _history,
    "report": _report,
    "drill's view": _drill,
    "audit": lambda run: lambda: audit_run(run.store, RUN),
    "reports: last ones": _last_reports,
    "reports: all, by who was behind": _reports_behind,
    "tracking: a promotion": _promotion,
    "tracking: a server that was away": _all_points,
    "tracking: metrics.csv": _metrics_file,
}
GOING_ON = "the next segment's start"
ALL_READERS: dict[str, Reader] = {**READERS, GOING_ON: _next_segment}
