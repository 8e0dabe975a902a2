"""Event files for TensorBoard beside a run: one for each part of the curves, never changed once it is there.

A file's name records after how many rollbacks it was written, and up to which step: so what is there determines what is
missing, and a part that is written again has the same bytes. Invariant: after a rollback the next file begins with
TensorBoard's own record for that, by which it forgets the steps that were left out.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from storage.objects.addresses import RUNS_FOLDER
from storage.objects.store import Store
from storage.runs.run_state import RunState
from tasks.tracking.marks import first_resume_step
from tasks.tracking.points import Point, Snapshot, read_points

FILE_VERSION = "brain.Event:2"
# TensorBoard reads the files of a folder in the order of their names.
PREFIX = "events.out.tfevents"


@dataclass(frozen=True)
class _Written:
    """What is there: up to which step, as the run was after so many rollbacks; what was forgotten since."""

    step: int
    forgotten_from: int | None


def write_events(store: Store, snapshot: Snapshot) -> None:
    """Write what is missing. Raises `StoreError`."""
    state = snapshot.state
    written = _find_written(store, state)
    # A validation, or the test, of the last step may still come: it is written with what follows, or at the end.
    last = snapshot.marks.last_step - (0 if state.is_complete else 1)
    points = [point for point in read_points(store, snapshot, written.step) if point.step <= last]
    if points:
        name = f"{_prefix(state)}{len(state.rollbacks):04d}-{points[-1].step:012d}"
        store.write(name, render_events(points, state.created_at, written.forgotten_from))


def render_events(points: Sequence[Point], began_at: float, forgotten_from: int | None = None) -> bytes:
    """An event file. With `forgotten_from` TensorBoard forgets that step, and all later ones, of the files before."""
    # Loads protocol buffers and more: who asks for no such files does not need the package.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    data = io.BytesIO()
    writer = RecordWriter(data)
    writer.write(Event(wall_time=began_at, file_version=FILE_VERSION).SerializeToString())
    if forgotten_from is not None:
        start = Event(
            wall_time=points[0].milliseconds / 1000,
            step=forgotten_from,
            session_log=SessionLog(status=SessionLog.START),
        )
        writer.write(start.SerializeToString())
    for point in points:
        value = Summary.Value(tag=point.key, simple_value=point.value)
        event = Event(wall_time=point.milliseconds / 1000, step=point.step, summary=Summary(value=[value]))
        writer.write(event.SerializeToString())
    return data.getvalue()


def _find_written(store: Store, state: RunState) -> _Written:
    now = len(state.rollbacks)
    ends = [key.rpartition(".")[2].split("-") for key in store.list_keys(_prefix(state))]
    steps: dict[int, int] = {}
    for rollbacks, step in ends:
        steps[int(rollbacks)] = max(int(step), steps.get(int(rollbacks), -1))
    if not steps or now in steps:
        return _Written(steps.get(now, -1), None)
    known = max(steps)
    stays = min(steps[known], first_resume_step(state, known)) if known < now else -1
    return _Written(stays, stays + 1)


def _prefix(state: RunState) -> str:
    return f"{RUNS_FOLDER}/{state.run}/tensorboard/{PREFIX}.{int(state.created_at):010d}.holdfast."
