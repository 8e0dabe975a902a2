"""A run that diverged goes back and leaves out what led there: once, in whichever process, so often and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.events.schemas.events import Event

from storage.checkpoints.strays import find_strays
from storage.errors import ConflictError, FencedError, RunBusyError, RunDivergedError
from storage.objects.local_store import LocalStore
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.rolling_back import roll_back
from storage.runs.run_state import Divergence, RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote
from tasks.config.load import configure
from tasks.configuration.run import DataConfig, RunConfig
from tasks.prefect_bridge.alerts import ROLLBACK
from tasks.recovery.roll_back import answer_divergence
from tasks.reporting.rollbacks import count_skipped, describe_rollbacks
from tasks.run_paths import RunPaths
from tests.helpers.runs import BATCH_SIZE, lease_run, make_checkpoint, make_run, record_of
from training.configuration import DivergenceConfig

DATA = DataConfig(text="t", label="l", kind="binary")
POLICY = RetentionPolicy(newest=9)


class Diverging:
    """A run whose segments promote checkpoints and then diverge."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self.folder = folder
        self.manifest = make_run(self.store)
        self.run_paths = RunPaths(self.store, self.manifest, folder / "scratch", folder / "data")

    @property
    def state(self) -> RunState:
        return self.manifest.load_head().state

    def promote(self, fence: int, step: int) -> str:
        """Save and promote a step; the checkpoint's folder."""
        found = make_checkpoint(self.store, self.folder / "made", step, fence)
        self.manifest.commit("promoted", promote(record_of(found), POLICY))
        return found.path

    def diverge(self, fence: int, step: int, kind: str = "loss") -> None:
        first_step = self.state.lease.first_step if self.state.lease else 0
        record = SegmentRecord(
            fence=fence, outcome="diverged", cause=f"The loss became nan at step {step}.", first_step=first_step,
            last_step=step, world_size=1, planned_steps=1000, started_at=1.0, seconds=1.0, steps_lost=0, phases={},
            divergence=Divergence.model_validate({"kind": kind, "step": step}),
        )  # fmt: skip
        self.manifest.commit("diverged", end_segment(record))

    def segment(self, *promoted: int, diverged: int) -> int:
        """A segment that promotes some steps and diverges at another; its fence."""
        fence = lease_run(self.manifest)
        for step in promoted:
            self.promote(fence, step)
        self.diverge(fence, diverged)
        return fence


@pytest.fixture
def run(tmp_path: Path) -> Diverging:
    return Diverging(tmp_path)


def config_of(**divergence: object) -> RunConfig:
    train = {"batch_size": BATCH_SIZE}
    return RunConfig.model_validate({"run": "run", "data": DATA.model_dump(), "train": train, "divergence": divergence})


def test_the_newest_checkpoint_that_is_old_enough_becomes_the_resume_point(run: Diverging) -> None:
    fence = run.segment(10, 20, 30, 40, diverged=43)
    state = answer_divergence(config_of(rollback_steps=15, consecutive_steps=5), run.run_paths)
    assert [record.step for record in state.kept] == [20, 10]
    assert state.promoted == state.kept[0]
    (record,) = state.rollbacks
    assert (record.fence, record.diverged_step, record.resume_step) == (fence, 43, 28)
    assert (record.first_position, record.end_position) == (28 * BATCH_SIZE, 43 * BATCH_SIZE)
    assert record.cause == "The loss became nan at step 43."


def test_steps_that_are_trained_again_before_what_is_left_out_are_lost_and_no_others(run: Diverging) -> None:
    fence = run.segment(10, 20, 30, 40, diverged=43)
    before = run.manifest.load_head().state.segments[-1].model_copy(update={"steps_lost": 3})
    run.manifest.commit("noted", lambda state, _: state.model_copy(update={"segments": [before]}))
    state = answer_divergence(config_of(rollback_steps=15, consecutive_steps=5), run.run_paths)
    assert [(record.fence, record.resume_step) for record in state.rollbacks] == [(fence, 28)]
    assert state.promoted is not None and state.promoted.step == 20
    assert state.steps_lost == 28 - 20


def test_without_a_checkpoint_that_is_old_enough_the_run_begins_again(run: Diverging) -> None:
    run.segment(30, 40, diverged=43)
    state = answer_divergence(config_of(rollback_steps=40), run.run_paths)
    assert (state.promoted, state.kept) == (None, [])
    assert state.rollbacks[0].resume_step == 3


def test_what_lies_behind_the_divergence_can_be_deleted_and_can_not_come_back(run: Diverging) -> None:
    fence = run.segment(10, 20, 30, diverged=31)
    answer_divergence(config_of(rollback_steps=15), run.run_paths)
    head = run.manifest.load_head()
    assert [path.rpartition("/")[2] for path in find_strays(run.store, head)] == [
        f"{step:012d}-f{fence:08d}" for step in (20, 30)
    ]
    late = record_of(make_checkpoint(run.store, run.folder / "late", 31, fence))
    with pytest.raises(FencedError):
        run.manifest.commit("promoted", promote(late, POLICY))


def test_steps_are_promoted_again_by_the_segment_that_follows(run: Diverging) -> None:
    before = run.segment(10, 20, 30, diverged=31)
    answer_divergence(config_of(rollback_steps=15), run.run_paths)
    fence = lease_run(run.manifest)
    path = run.promote(fence, 20)
    state = run.state
    assert (state.promoted.path if state.promoted else None) == path
    assert [(record.step, record.fence) for record in state.kept] == [(20, fence), (10, before)]


def test_a_divergence_is_answered_once_and_told_once(run: Diverging, told: Callable[[], list[Event]]) -> None:
    fence = run.segment(10, diverged=12)
    state = answer_divergence(config_of(), run.run_paths)
    generation = run.manifest.load_head().generation
    assert answer_divergence(config_of(), run.run_paths) == state
    assert run.manifest.load_head().generation == generation
    (event,) = told()
    assert (event.event, event.resource.id) == (ROLLBACK, f"holdfast.{run.store.address}/runs/run")
    assert event.payload.items() >= {"run": "run", "diverged_step": 12, "step": 0}.items()
    assert event.payload["message"].startswith(
        "Training diverged. The loss became nan at step 12. Rollback 1 of at most 5"
    )
    with pytest.raises(ConflictError, match="rolled back by another process"):
        run.manifest.commit("again", roll_back(fence, 5, 1.0, BATCH_SIZE))


def test_a_run_that_was_taken_up_is_not_rolled_back_under_its_holder(run: Diverging) -> None:
    fence = run.segment(10, diverged=12)
    lease_run(run.manifest)
    with pytest.raises(RunBusyError):
        run.manifest.commit("rolled back", roll_back(fence, 5, 1.0, BATCH_SIZE))


@pytest.mark.parametrize("outcome", ["lost", "failed", "completed"])
def test_a_segment_that_ended_otherwise_is_no_reason_to_go_back(run: Diverging, outcome: str) -> None:
    fence = lease_run(run.manifest)
    run.promote(fence, 10)
    record = SegmentRecord.model_validate(
        {"fence": fence, "outcome": outcome, "cause": "", "first_step": 0, "last_step": 10, "world_size": 1,
         "planned_steps": 100, "started_at": 1.0, "seconds": 1.0, "steps_lost": 0, "phases": {}}
    )  # fmt: skip
    run.manifest.commit("ended", end_segment(record))
    generation = run.manifest.load_head().generation
    assert answer_divergence(config_of(), run.run_paths).rollbacks == []
    assert run.manifest.load_head().generation == generation


def test_test_metrics_of_a_later_step_are_dropped(run: Diverging) -> None:
    fence = lease_run(run.manifest)
    run.promote(fence, 10)
    run.promote(fence, 20)
    measured = {"metrics": {"auc": 0.5}, "metrics_step": 20}
    run.manifest.commit("measured", lambda state, _: state.model_copy(update=measured))
    run.diverge(fence, 21)
    state = answer_divergence(config_of(rollback_steps=10), run.run_paths)
    assert (state.metrics, state.metrics_step) == (None, None)


def test_when_no_rollback_is_left_the_whole_story_is_told_and_nothing_is_changed(run: Diverging) -> None:
    config = config_of(rollback_steps=10, max_rollbacks=2, learning_rate_factor=0.5)
    for diverged in (25, 27):
        run.segment(diverged=diverged)
        answer_divergence(config, run.run_paths)
    fence = run.segment(diverged=26)
    generation = run.manifest.load_head().generation
    with pytest.raises(RunDivergedError) as raised:
        answer_divergence(config, run.run_paths)
    assert str(raised.value).splitlines()[:4] == [
        f"Run 'run' diverged in segment {fence}: The loss became nan at step 26.",
        "divergence.max_rollbacks allows no rollback beyond those that were made:",
        "  1. The loss became nan at step 25. So the run went back to step 15, and on from there without the 80 "
        "samples that led to step 25 (positions 120 to 199 of the order), with 0.5 times the scheduled learning rate.",
        "  2. The loss became nan at step 27. So the run went back to step 17, and on from there without the 80 "
        "samples that led to step 27 (positions 216 to 295 of the order), with 0.25 times the scheduled learning rate.",
    ]
    assert "--set divergence.max_rollbacks=3" in str(raised.value)
    assert run.manifest.load_head().generation == generation


def test_with_one_more_allowed_it_goes_on_from_there(run: Diverging) -> None:
    run.segment(10, diverged=25)
    with pytest.raises(RunDivergedError, match=r"No rollback is allowed: divergence\.max_rollbacks = 0"):
        answer_divergence(config_of(max_rollbacks=0), run.run_paths)
    assert answer_divergence(config_of(max_rollbacks=1), run.run_paths).rollbacks[0].diverged_step == 25


def test_a_spike_that_was_none_comes_with_the_advice_how_to_let_it_pass(run: Diverging) -> None:
    fence = lease_run(run.manifest)
    run.diverge(fence, 130, kind="spike")
    with pytest.raises(RunDivergedError, match=r"larger divergence\.spike_sigmas, or divergence\.spikes=false"):
        answer_divergence(config_of(max_rollbacks=0), run.run_paths)


def test_a_rollback_that_was_replaced_is_told_as_such_and_not_counted_twice(run: Diverging) -> None:
    for diverged, back in ((25, 10), (26, 20)):
        run.segment(diverged=diverged)
        state = answer_divergence(config_of(rollback_steps=back), run.run_paths)
    told = describe_rollbacks(state.rollbacks)
    assert told[0].endswith("A later rollback went back at least as far, and replaced this one.")
    assert told[1].endswith("(positions 48 to 287 of the order).")
    assert count_skipped(state.rollbacks) == 240


def test_going_back_into_the_spike_is_refused() -> None:
    with pytest.raises(ValueError, match="go back into the spike: rollback_steps is 5"):
        configure(DivergenceConfig, {"rollback_steps": 5}, "test")
    assert DivergenceConfig(rollback_steps=5, spikes=False).rollback_steps == 5
