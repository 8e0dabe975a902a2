"""Checkpoints written beside training: the same as those for which training waits, and never in its way."""

import functools
import json
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.backoff import Backoff
from storage.checkpoints import tensor_layout
from storage.checkpoints.checkpoints import FoundCheckpoint, verify_checkpoint
from storage.checkpoints.history import read_whole_history
from storage.datasets import DatasetManifest
from storage.errors import StoreError
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import assembling_ahead, train_segment
from tests.helpers.runs import find_complete_checkpoints
from tests.helpers.training import make_spec, read_log, read_state, train_forked
from training import loop
from training.checkpointing import writer as writer_module
from training.checkpointing.writer import CheckpointWriter
from training.metrics import training_state, validation
from training.metrics.reporter import Report
from training.metrics.validation import Validator
from training.parts import Segment
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.trainer import Trainer
from training.validation_configuration import ValidationConfig
from training.world import World

STEP_SECONDS, STEPS = 0.03, 20
# Of the two segments for whose saves training waited, one with many small files.
OF_SMALL_FILES, OF_WHOLE_FILES = 2, 3
# Tests take the place of functions in it, also of one that it only imports.
checkpoint_writer: Any = writer_module


@dataclass(frozen=True)
class Waited:
    """A data set, and what segments on one rank have saved at each of their steps while training waited."""

    store: LocalStore
    dataset: DatasetManifest


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> Waited:
    folder = tmp_path_factory.mktemp("waited")
    store = LocalStore(folder / "store")
    dataset = publish_small_dataset(store, folder / "work", rows=100)
    for fence, target in ((OF_SMALL_FILES, with_small_files), (OF_WHOLE_FILES, train_segment)):
        spec = make_spec(store, dataset, folder / f"{fence}", fence, every_steps=1, steps=STEPS)
        assert train_forked(spec, store, target).outcome == "completed", read_log(spec)
    return Waited(store, dataset)


@pytest.fixture
def store(waited: Waited, tmp_path: Path) -> LocalStore:
    """A copy of it, for segments from fence 4 on."""
    return LocalStore(Path(shutil.copytree(waited.store.root, tmp_path / "store")))


@pytest.fixture
def dataset(waited: Waited) -> DatasetManifest:
    return waited.dataset


def saved_by(store: LocalStore, fence: int) -> dict[int, FoundCheckpoint]:
    return {found.index.step: found for found in find_complete_checkpoints(store, "small", fence)}


def checkpoints_of(store: LocalStore, spec: SegmentSpec) -> dict[int, FoundCheckpoint]:
    return saved_by(store, spec.fence)


def read_reports(spec: SegmentSpec) -> list[Report]:
    return [Report.model_validate_json(line) for line in spec.progress_file.read_text().splitlines()]


def with_small_files(spec: SegmentSpec, world: World) -> Any:
    tensor_layout.FILE_BYTES = 4096
    return train_segment(spec, world)


def slowly(spec: SegmentSpec, world: World) -> Any:
    """Train with steps that leave time to write, and with many small files."""
    take_step = Trainer.take_step

    @functools.wraps(take_step)
    def slow_step(*arguments: Any) -> Any:
        time.sleep(STEP_SECONDS)  # what a step of a larger model takes
        return take_step(*arguments)

    Trainer.take_step = slow_step  # type: ignore[method-assign, assignment]
    return with_small_files(spec, world)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_is_written_beside_training_is_the_state_at_the_step_boundary(
    ranks: int, store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"every_steps": 1, "background": True, "steps": STEPS, "ranks": ranks}
    beside = make_spec(store, dataset, tmp_path / "beside", fence=4, **settings)
    assert train_forked(beside, store, slowly).outcome == "completed", read_log(beside)
    expected, found = saved_by(store, OF_SMALL_FILES), checkpoints_of(store, beside)
    assert len(found) > 1 and max(found) == STEPS  # the busier the machine, the fewer
    for step, checkpoint in found.items():
        verify_checkpoint(store, checkpoint.path, checkpoint.digest)
        assert checkpoint.index.files == expected[step].index.files
    assert len(found[STEPS].index.model_files) > ranks
    assert [report.checkpoint.step for report in read_reports(beside) if report.checkpoint] == sorted(found)


def test_ranks_share_the_files_of_a_restore_and_go_on_with_the_same_bits(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    expected = saved_by(store, OF_SMALL_FILES)
    settings: dict[str, Any] = {"resume": expected[9], "steps": STEPS, "every_steps": 9}
    for fence, ranks in ((4, 1), (5, 3)):
        spec = make_spec(store, dataset, tmp_path / f"{ranks}", fence, ranks=ranks, **settings)
        assert train_forked(spec, store, with_small_files).outcome == "completed", read_log(spec)
        assert checkpoints_of(store, spec)[STEPS].index.files == expected[STEPS].index.files


def test_from_a_damaged_checkpoint_no_rank_trains_and_none_calls_it_damaged(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    """Nor do they go on from another one: whoever supervises them looks by himself."""
    found = saved_by(store, OF_WHOLE_FILES)
    damaged = store.fetch(f"{found[10].path}/{found[10].index.tensor_files[-1]}")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    settings: dict[str, Any] = {"resume": found[10], "ranks": 2, "every_steps": 10, "steps": STEPS}
    spec = make_spec(store, dataset, tmp_path / "resumed", fence=4, **settings)
    outcome = train_forked(spec, store)
    assert (outcome.outcome, outcome.is_final, outcome.last_step) == ("failed", False, 0), read_log(spec)
    assert "The checkpoint of step 10 could not be read." in outcome.cause and damaged.name in outcome.cause
    assert checkpoints_of(store, spec) == {}


def with_a_store_that_fails(spec: SegmentSpec, world: World) -> Any:
    """The second rank's files of the first checkpoint cannot be put."""
    put = checkpoint_writer.put_checkpoint_file
    attempts: list[str] = []

    def failing_put(store: Any, key: str, *arguments: Any) -> Any:
        if world.rank == 1 and "/000000000005-" in key:
            attempts.append(key)
            (spec.scratch_folder / "attempts.json").write_text(json.dumps(attempts))
            raise StoreError("no space is left")
        return put(store, key, *arguments)

    checkpoint_writer.put_checkpoint_file = failing_put
    checkpoint_writer.BACKOFF = Backoff(0.01, 0.02)
    return slowly(spec, world)


def test_a_save_that_fails_three_times_raises_an_alarm_and_training_goes_on(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"every_steps": 5, "background": True, "ranks": 2, "steps": STEPS}
    spec = make_spec(store, dataset, tmp_path / "failing", fence=4, **settings)
    assert train_forked(spec, store, with_a_store_that_fails).outcome == "completed", read_log(spec)
    assert len(set(attempts := json.loads((spec.scratch_folder / "attempts.json").read_text()))) == 1
    assert len(attempts) == checkpoint_writer.ATTEMPTS
    alarms = [report.alarm for report in read_reports(spec) if report.alarm]
    assert len(alarms) == 1 and "step 5" in alarms[0]
    assert "no space is left" in read_log(spec)
    found = checkpoints_of(store, spec)
    assert 5 not in found and max(found) == STEPS
    # What the save that failed had of the ledger is in the next one.
    assert found[STEPS].index.files == saved_by(store, OF_SMALL_FILES)[STEPS].index.files
    first = min(found)
    ledger = found[first].index.ledger
    assert ledger is not None and ledger.first_step == 0


def with_a_short_history(spec: SegmentSpec, world: World) -> Any:
    """What is long enough to go into a part: four points and validations."""
    training_state.MAX_RECENT = 4
    return with_a_store_that_fails(spec, world)


def test_the_history_is_whole_in_every_checkpoint_also_where_a_save_with_a_part_of_it_failed(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    fine: dict[str, Any] = {"every_steps": 5, "log_every_steps": 1, "background": True, "ranks": 2}
    straight = make_spec(store, dataset, tmp_path / "straight", 4, every_steps=1, log_every_steps=1)
    assert train_forked(straight, store).outcome == "completed", read_log(straight)
    begun = make_spec(store, dataset, tmp_path / "begun", 5, **fine)
    assert train_forked(begun, store, with_a_short_history).outcome == "completed", read_log(begun)
    assert 5 not in checkpoints_of(store, begun)
    from_point = checkpoints_of(store, begun)[min(checkpoints_of(store, begun))]
    resumed = make_spec(store, dataset, tmp_path / "resumed", 6, resume=from_point, **fine)
    assert train_forked(resumed, store, with_a_short_history).outcome == "completed", read_log(resumed)
    expected = checkpoints_of(store, straight)
    for spec in (begun, resumed):
        for step, found in checkpoints_of(store, spec).items():
            state = read_state(store, found)
            assert len(state["history"]["loss"]) <= 5
            assert read_whole_history(store, state) == read_state(store, expected[step])["history"]
    assert len(list(store.list_keys("runs/small/history/"))) >= 4


def with_one_rank_that_fails_while_another_writes(spec: SegmentSpec, world: World, failing: int) -> Any:
    """The files of step 5 cannot be put by one rank; the other one keeps its first until the save of step 10 is due."""
    checkpoint_writer.BACKOFF = Backoff(0.01, 0.02)
    put, take_step = checkpoint_writer.put_checkpoint_file, Trainer.take_step
    has_gone_on = threading.Event()

    def fail_or_keep(store: Any, key: str, data: memoryview, *arguments: Any) -> Any:
        if "/000000000005-" in key and world.rank == failing:
            raise StoreError("no space is left")
        if "/000000000005-" in key and not has_gone_on.is_set():
            before = bytes(data)
            seen = {"has gone on": has_gone_on.wait(60), "is the same": bytes(data) == before}
            (spec.scratch_folder / "seen.json").write_text(json.dumps(seen))
        return put(store, key, data, *arguments)

    def noted_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if step == 12:
            has_gone_on.set()
        return take_step(trainer, step, microbatches)

    checkpoint_writer.put_checkpoint_file = fail_or_keep
    Trainer.take_step = noted_step  # type: ignore[method-assign, assignment]
    return slowly(spec, world)


@pytest.mark.parametrize("failing", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_save_that_fails_on_one_rank_leaves_what_the_other_one_is_writing_alone_and_waits_for_nobody(
    failing: int, store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"every_steps": 5, "background": True, "ranks": 2, "steps": STEPS}
    spec = make_spec(store, dataset, tmp_path / "failing", fence=4, **settings)
    target = functools.partial(with_one_rank_that_fails_while_another_writes, failing=failing)
    assert train_forked(spec, store, target).outcome == "completed", read_log(spec)
    seen = json.loads((spec.scratch_folder / "seen.json").read_text())
    assert seen == {"has gone on": True, "is the same": True}
    assert len([report.alarm for report in read_reports(spec) if report.alarm]) == 1
    found = checkpoints_of(store, spec)
    assert 5 not in found and len(found) > 1 and max(found) == STEPS
    for checkpoint in found.values():
        verify_checkpoint(store, checkpoint.path, checkpoint.digest)


def let_the_save_of_step_5_hang() -> None:
    """In this process no write of its files ever returns."""
    put = checkpoint_writer.put_checkpoint_file

    def put_or_hang(store: Any, key: str, *rest: Any) -> Any:
        if "/000000000005-" in key:
            threading.Event().wait()
        return put(store, key, *rest)

    checkpoint_writer.put_checkpoint_file = put_or_hang


def with_a_store_that_hangs(spec: SegmentSpec, world: World) -> Any:
    """Nothing of the first checkpoint is ever put; the ranks are asked to stop at step 8."""
    let_the_save_of_step_5_hang()
    flag = StopFlag()
    take_step = Trainer.take_step

    def stopping_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if step == 7 and world.rank == 0:
            flag.reason = lambda: StopReason.PREEMPTED  # type: ignore[method-assign]
        return take_step(trainer, step, microbatches)

    Trainer.take_step = stopping_step  # type: ignore[method-assign, assignment]
    return run_segment(spec, world, flag, assembling_ahead(world))


def test_a_save_under_way_is_never_overtaken_and_never_holds_up_the_last_one(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"every_steps": 5, "background": True, "ranks": 2, "steps": STEPS}
    spec = make_spec(store, dataset, tmp_path / "hanging", fence=4, **settings)
    outcome = train_forked(spec, store, with_a_store_that_hangs)
    assert (outcome.outcome, outcome.last_step) == ("preempted", 8), read_log(spec)
    assert list(checkpoints_of(store, spec)) == [8]
    assert saved_by(store, OF_WHOLE_FILES)[8].index.files == checkpoints_of(store, spec)[8].index.files


def with_a_validation_in_the_way(spec: SegmentSpec, world: World) -> Any:
    """The save of step 9 begins to be written when the validation after step 10 does, and each window waits for it."""
    validation.WINDOW_PASSES = 1
    has_begun = threading.Event()
    writers: list[CheckpointWriter] = []
    put, start, windows = checkpoint_writer.put_checkpoint_file, CheckpointWriter.start, Validator._windows

    def waiting_put(store: Any, key: str, *arguments: Any) -> Any:
        if "/000000000009-" in key:
            has_begun.wait()
        return put(store, key, *arguments)

    def noted_start(writer: CheckpointWriter, work: Any) -> None:
        writers.append(writer)
        start(writer, work)

    def long_windows(validator: Validator) -> Any:
        for microbatches in windows(validator):
            yield microbatches
            has_begun.set()
            assert writers[0].ends_well()

    checkpoint_writer.put_checkpoint_file = waiting_put
    CheckpointWriter.start = noted_start  # type: ignore[method-assign, assignment]
    Validator._windows = long_windows  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


def test_a_long_validation_does_not_keep_a_checkpoint_from_being_found(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"every_steps": 9, "background": True, "ranks": 2, "steps": STEPS}
    spec = make_spec(store, dataset, tmp_path / "long", fence=4, **settings)
    spec = spec.model_copy(update={"validation": ValidationConfig(every_steps=10, batch_size=8)})
    assert train_forked(spec, store, with_a_validation_in_the_way).outcome == "completed", read_log(spec)
    first = next(report for report in read_reports(spec) if report.checkpoint)
    assert first.checkpoint is not None
    assert (first.phase, first.checkpoint.step, first.step) == ("validate", 9, 10)
    assert saved_by(store, OF_WHOLE_FILES)[9].index.files == checkpoints_of(store, spec)[9].index.files


def hangs_at_step_5(spec: SegmentSpec, world: World) -> Any:
    """One write never returns, as on a network file system whose server is gone."""
    let_the_save_of_step_5_hang()
    loop.LONG_SAVE_SECONDS = 0.2
    return slowly(spec, world)


def hangs_before_the_best(spec: SegmentSpec, world: World) -> Any:
    """The first validation, at step 10, is the best so far while the save of step 5 hangs."""
    let_the_save_of_step_5_hang()
    loop.LONG_SAVE_SECONDS = 0.5
    return train_segment(spec, world)


def test_a_save_that_hangs_where_the_best_model_is_to_be_saved_is_not_waited_for_for_ever(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 12, "every_steps": 5, "background": True, "keep_best": 1, "ranks": 2}
    spec = make_spec(store, dataset, tmp_path / "segment", fence=4, **settings)
    assert train_forked(spec, store, hangs_before_the_best).outcome == "completed", read_log(spec)
    notes = [report.note for report in read_reports(spec) if report.note]
    assert any("The model of step 10, the best so far, gets no checkpoint" in note for note in notes)
    assert list(checkpoints_of(store, spec)) == [12]


def stopped_while_it_waits(spec: SegmentSpec, world: World) -> Any:
    """Asked to stop while the save of step 5 keeps the best model, of step 10, waiting."""
    let_the_save_of_step_5_hang()
    flag, noted = StopFlag(), loop._finish_save

    def stopping(segment: Segment, longest_seconds: float | None = None) -> bool:
        flag.reason = lambda: StopReason.PREEMPTED  # type: ignore[method-assign]
        return noted(segment, longest_seconds)

    loop._finish_save = stopping
    return run_segment(spec, world, flag, assembling_ahead(world))


def test_a_stop_while_the_best_model_waits_for_a_save_saves_that_model(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 12, "every_steps": 5, "background": True, "keep_best": 1}
    spec = make_spec(store, dataset, tmp_path / "segment", fence=4, **settings)
    outcome = train_forked(spec, store, stopped_while_it_waits)
    assert (outcome.outcome, outcome.last_step) == ("preempted", 10), read_log(spec)
    assert list(checkpoints_of(store, spec)) == [10]


def stopped_beside_the_best_save(spec: SegmentSpec, world: World) -> Any:
    """Asked to stop at once after step 10, the best so far, whose save takes a second."""
    flag, put = StopFlag(), checkpoint_writer.put_checkpoint_file

    def slow_put(store: Any, path: str, *rest: Any) -> Any:
        if "/000000000010-" in path:
            flag.reason = lambda: StopReason.PREEMPTED  # type: ignore[method-assign]
            time.sleep(1)  # what the test is about: a save that is not over at once
        return put(store, path, *rest)

    checkpoint_writer.put_checkpoint_file = slow_put
    return run_segment(spec, world, flag, assembling_ahead(world))


def test_ranks_that_are_stopped_beside_the_save_of_the_best_model_keep_it(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 300, "every_steps": 1000, "background": True, "keep_best": 1, "ranks": 2}
    spec = make_spec(store, dataset, tmp_path / "segment", fence=4, **settings)
    assert train_forked(spec, store, stopped_beside_the_best_save).outcome == "preempted", read_log(spec)
    best, last = sorted(checkpoints_of(store, spec))
    assert best == 10 < last


def test_a_save_that_hangs_is_told_once_and_training_goes_on(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    spec = make_spec(store, dataset, tmp_path / "segment", fence=4, steps=30, every_steps=5, background=True)
    outcome = train_forked(spec, store, hangs_at_step_5)
    assert (outcome.outcome, outcome.last_step) == ("completed", 30), read_log(spec)
    alarms = [report.alarm for report in read_reports(spec) if report.alarm]
    assert len(alarms) == 1 and "is still under way, and no other one begins before it ends" in alarms[0]
    # The last one of a run gives up the one that hangs.
    assert max(checkpoints_of(store, spec)) == 30 and 5 not in checkpoints_of(store, spec)
