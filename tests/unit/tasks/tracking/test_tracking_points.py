"""What is told of a run: its points and their times, its description, and the files beside it."""

import contextlib
import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from storage.checkpoints.checkpoints import STATE_NAME
from storage.objects.history import seal_history
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.tracking.csv_file import render_csv
from tasks.tracking.description import identity_of, parameters_of, status_of, tags_of
from tasks.tracking.machine import Averages, read_gpus
from tasks.tracking.marks import Marks, read_marks, write_marks
from tasks.tracking.points import Snapshot, read_points
from tasks.tracking.tensorboard_files import write_events
from tests.helpers.finished_runs import BEGAN_AT, checkpoint_at, history_of, interrupted_run, segments_of, state_of
from tests.helpers.rollbacks import rollback_to


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def state_at(step: int, *resume_steps: int) -> RunState:
    """A run with a resume point at `step`, after rollbacks to these steps."""
    point = checkpoint_at("run", step)
    rollbacks = [rollback_to(resume_step) for resume_step in resume_steps]
    return state_of("run", 100, []).model_copy(update={"promoted": point, "kept": [point], "rollbacks": rollbacks})


def save_history(store: Store, record: CheckpointRecord | None, every_steps: int = 10, parts: int = 0) -> None:
    """What a checkpoint remembers: a point every so many steps, of which the first `parts` tenths are in parts."""
    assert record is not None
    history = history_of(record.step, every_steps)
    history["gradient_norm"] = [[step, loss / 2] for step, loss, _ in history["loss"]]
    earlier = None
    for _ in range(parts):
        entries = {name: history[name][:3] for name in history}
        history = {name: history[name][3:] for name in history}
        sealed = seal_history("run", "curve", entries, earlier)
        sealed.write(store)
        earlier = sealed.part
    stated = history | ({"earlier": earlier.model_dump(mode="json")} if earlier else {})
    store.write(f"{record.path}/{STATE_NAME}", json.dumps({"history": stated}).encode())


def test_a_point_has_a_time_between_the_promotions_around_it(store: LocalStore) -> None:
    marks = Marks().with_mark_of(state_at(20), {}).with_mark_of(state_at(60), {})
    times = [marks.milliseconds(state_at(60), step) - round(1000 * BEGAN_AT) for step in (1, 10, 20, 30, 60)]
    assert times == [1_000, 10_000, 20_000, 30_000, 60_000]  # a promotion comes so many seconds after the beginning


def test_times_stay_what_they_were_when_the_run_gets_on(store: LocalStore) -> None:
    before = Marks().with_mark_of(state_at(20), {"samples_per_second": 5.0})
    write_marks(store, "run", before)
    after = read_marks(store, "run").with_mark_of(state_at(40), {}).with_mark_of(state_at(40), {"other": 1.0})
    assert [(mark.step, mark.figures) for mark in after.marks] == [(20, {"samples_per_second": 5.0}), (40, {})]
    assert [before.milliseconds(state_at(20), step) for step in range(1, 21)] == [
        after.milliseconds(state_at(40), step) for step in range(1, 21)
    ]
    assert after.with_mark_of(state_at(20), {}) == after  # a damaged checkpoint sent the run back, to the same steps


def test_what_a_rollback_left_out_is_forgotten() -> None:
    marks = Marks().with_mark_of(state_at(20), {}).with_mark_of(state_at(40), {})
    assert [mark.step for mark in marks.with_mark_of(state_at(20, 25), {}).marks] == [20]
    assert [mark.step for mark in marks.with_mark_of(state_at(30, 25), {}).marks] == [20, 30]


def test_marks_that_cannot_be_read_are_as_none(store: LocalStore) -> None:
    store.write("runs/run/tracking.json", b"{")
    assert read_marks(store, "run") == Marks()


def keep_marks(store: LocalStore, steps: Iterable[int], *resume_steps: int) -> Marks:
    """A mark for each of these steps, each written at its promotion by a process of its own."""
    for step in steps:
        write_marks(store, "run", read_marks(store, "run").with_mark_of(state_at(step, *resume_steps), {"a": step}))
    return read_marks(store, "run")


def test_what_a_promotion_writes_of_the_marks_does_not_grow_with_the_run(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 4)
    sizes = []
    for number in range(1, 50):
        marks = keep_marks(store, [10 * number])
        assert [mark.step for mark in marks.marks] == list(range(10, 10 * number + 1, 10))
        assert [mark.figures for mark in marks.marks] == [{"a": mark.step} for mark in marks.marks]
        sizes.append(len(store.read("runs/run/tracking.json")))
    assert max(sizes[16:]) <= max(sizes[:16]) + 50  # the name of a part, and digits
    assert len(list(store.list_keys("runs/run/history/marks-"))) == marks.num_earlier // 4 == 11
    whole = Marks(marks=marks.marks)
    state = state_at(490)
    assert [marks.milliseconds(state, step) for step in range(1, 491)] == [
        whole.milliseconds(state, step) for step in range(1, 491)
    ]
    assert [mark.step for mark in marks.after(455)] == [460, 470, 480, 490]


@pytest.mark.parametrize("resume_step", [0, 5, 115, 160, 235, 300])
def test_a_rollback_forgets_marks_also_where_they_are_in_parts(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, resume_step: int
) -> None:
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 4)
    keep_marks(store, range(10, 310, 10))
    marks = keep_marks(store, [305, 315, 325], resume_step)
    assert [mark.step for mark in marks.marks] == [*range(10, resume_step + 1, 10), 305, 315, 325]


def test_marks_that_were_written_before_there_were_parts_go_on(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 4)
    marks = [{"step": step, "at": BEGAN_AT + step, "figures": {"a": step}} for step in range(10, 310, 10)]
    store.write("runs/run/tracking.json", json.dumps({"format": 1, "rollbacks": 0, "marks": marks}).encode())
    whole = keep_marks(store, [310])
    assert [mark.model_dump() for mark in whole.marks[:-1]] == marks and whole.last_step == 310
    assert len(json.loads(store.read("runs/run/tracking.json"))["marks"]) < 8


@pytest.mark.parametrize("writes", range(8))
def test_a_process_that_ends_between_two_writes_of_marks_loses_none(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 100)
    kept = keep_marks(store, range(10, 310, 10))
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 4)
    before, write, left = read_marks(store, "run"), store.write, iter(range(writes))

    def write_or_end(key: str, data: bytes) -> None:
        if next(left, None) is None:
            raise SystemExit
        write(key, data)

    with monkeypatch.context() as patched, contextlib.suppress(SystemExit):
        patched.setattr(store, "write", write_or_end)
        write_marks(store, "run", before.with_mark_of(state_at(310), {}))
    assert len(list(store.list_keys("runs/run/history/marks-"))) == min(writes, 6)
    assert read_marks(store, "run").marks[:30] == kept.marks
    assert [mark.step for mark in keep_marks(store, [310]).marks] == list(range(10, 320, 10))
    assert len(list(store.list_keys("runs/run/history/marks-"))) == 6


def test_marks_of_which_a_part_is_damaged_are_as_none(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tracking.marks.MARKS_IN_PART", 4)
    keep_marks(store, range(10, 310, 10))
    key = next(store.list_keys("runs/run/history/marks-"))
    store.write(key, store.read(key).replace(b"10", b"11", 1))
    assert read_marks(store, "run") == Marks()


@pytest.mark.parametrize("parts", [0, 2])
def test_all_that_a_checkpoint_remembers_is_told_once_in_the_order_of_steps(store: LocalStore, parts: int) -> None:
    state = state_at(100)
    save_history(store, state.promoted, parts=parts)
    marks = Marks().with_mark_of(state_at(50), {"samples_per_second": 7.0}).with_mark_of(state, {})
    state = state.model_copy(update={"metrics": {"auc": 0.9}, "metrics_step": 100})
    points = read_points(store, Snapshot(state, marks))
    assert len({(point.key, point.step) for point in points}) == len(points)
    assert [point.step for point in points] == sorted(point.step for point in points)
    told = {key: [point.step for point in points if point.key == key] for key in {point.key for point in points}}
    every = list(range(10, 101, 10))
    assert told["loss"] == told["learning_rate"] == told["gradient_norm"] == every
    assert told["validation/loss"] == [100] and told["samples_per_second"] == [50] and told["test/auc"] == [100]
    later = read_points(store, Snapshot(state, marks), after_step=70)
    assert later == [point for point in points if point.step > 70]


def test_no_step_is_told_that_has_no_time_yet(store: LocalStore) -> None:
    """The resume point moves on while somebody reads: what has no mark is told with the next one."""
    state = state_at(100)
    save_history(store, state.promoted)
    points = read_points(store, Snapshot(state, Marks().with_mark_of(state_at(50), {})))
    assert max(point.step for point in points) == 50


def test_a_run_is_described_by_its_configuration_its_segments_and_its_resume_point(store: LocalStore) -> None:
    records = interrupted_run()
    tags = tags_of(store, records.state)
    assert tags["holdfast.segment.00009"] == "lost, steps 310 to 637: no sign of life for 30 s"
    assert tags["holdfast.resume_point.step"] == "1200"
    assert tags["holdfast.resume_point.address"].startswith(f"{store.address}/runs/intents/")
    assert len(tags["holdfast.resume_point.weights_sha256"]) == 64
    parameters = parameters_of(records.state)
    assert parameters["train.learning_rate"] == "0.001" and parameters["data.kind"] == "multiclass"
    assert "data.tokens" not in parameters  # it is not set


def test_a_run_is_the_same_one_wherever_its_store_is_and_another_one_begun_anew() -> None:
    state = state_at(20)
    moved = state.model_copy(update={"config": {"store": "elsewhere"}, "promoted": None})
    assert identity_of(state) == identity_of(moved)
    assert identity_of(state) != identity_of(state.model_copy(update={"created_at": BEGAN_AT + 1}))


def test_a_status_says_whether_the_run_is_over_or_waits() -> None:
    def ended(outcome: str) -> RunState:
        return state_of("run", 100, segments_of([(outcome, "", 50, 0)]))

    assert status_of(ended("budget")) == status_of(ended("preempted")) == "SCHEDULED"
    assert status_of(ended("failed")) == status_of(ended("diverged")) == "FAILED"
    complete = state_of("run", 100, segments_of([("completed", "", 100, 0)]))
    assert status_of(complete.model_copy(update={"metrics": {"auc": 0.9}, "metrics_step": 100})) == "FINISHED"


def test_metrics_csv_has_a_row_for_each_step_and_gives_numbers_back_to_the_bit(store: LocalStore) -> None:
    state = state_at(100)
    save_history(store, state.promoted)
    points = read_points(store, Snapshot(state, Marks().with_mark_of(state, {})))
    rows = list(csv.DictReader(io.StringIO(render_csv(points))))
    assert [int(row["step"]) for row in rows] == list(range(10, 101, 10))
    losses = {point.step: point.value for point in points if point.key == "loss"}
    assert {int(row["step"]): float(row["loss"]) for row in rows} == losses
    assert [row["validation/loss"] == "" for row in rows] == [True] * 9 + [False]


def test_tensorboard_reads_each_step_once_also_after_a_rollback(store: LocalStore) -> None:
    """By its own reader. Each promotion adds a file; what is there is never written again."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    marks = Marks()
    for state, every_steps in (
        (state_at(20), 10), (state_at(40), 10), (state_at(40), 10), (state_at(20, 25), 10), (state_at(60, 25), 5),
    ):  # fmt: skip
        save_history(store, state.promoted, every_steps)
        marks = marks.with_mark_of(state, {})
        write_events(store, Snapshot(state, marks))
    ended = state.model_copy(update={"metrics": {"auc": 0.9}, "metrics_step": 60, "steps_total": 60})
    ended = ended.model_copy(update={"segments": segments_of([("completed", "", 60, 0)])})
    write_events(store, Snapshot(ended, marks))
    read = accumulator.EventAccumulator(str(store.root / "runs/run/tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == [10, 20, 30, 35, 40, 45, 50, 55, 60]
    assert [event.step for event in read.Scalars("test/auc")] == [60]


def test_gpus_are_read_from_what_the_driver_says() -> None:
    said = "0, 97, 31234, 310.5\n1, 3, 400, [N/A]\n"
    assert dict(read_gpus(said)) == {
        "system/gpu_0_utilization_percentage": 97,
        "system/gpu_0_memory_usage_megabytes": 31234,
        "system/gpu_0_power_usage_watts": 310.5,
        "system/gpu_1_utilization_percentage": 3,
        "system/gpu_1_memory_usage_megabytes": 400,
    }


def test_what_was_measured_between_two_promotions_is_averaged() -> None:
    averages = Averages()
    for speed in (10.0, 30.0):
        averages.add({"samples_per_second": speed})
    assert averages.take() == {"samples_per_second": 20.0}
    assert averages.take() == {}
