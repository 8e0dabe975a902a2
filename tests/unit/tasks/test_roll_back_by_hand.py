"""A person has a run go back to a kept checkpoint: once for a request, and never under a living process."""

import contextlib
import inspect
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.commands.status import render_status
from flows.resume import describe_plan
from storage.errors import ConfigurationError, IncompatibleRunError, RunBusyError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.positions import first_position
from storage.runs.rollbacks.rolling_back import roll_back_by_hand
from storage.runs.run_state import Divergence, RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote, take_lease
from tasks import roll_back as by_hand
from tasks.audits.skipped import find_unfounded
from tasks.configuration.run import RunConfig
from tasks.recovery.roll_back import answer_divergence
from tasks.reporting.status import read_status
from tasks.run_paths import RunPaths, open_run_paths
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.holders import dead_process, parent_process
from tests.helpers.runs import BATCH_SIZE, lease_run, make_checkpoint, record_of
from tests.helpers.terminals import shown

POLICY = RetentionPolicy(newest=9)
ASKED_BY = "flow run 1234"


class Trained:
    """A run of segments that promoted some steps."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = LocalStore(folder / "store"), folder
        self.manifest = Manifest(self.store, "run")
        self.manifest.create(
            RunState(
                run="run", created_at=1.0, config=self.config().model_dump(mode="json"), dataset_digest="d" * 64,
                dataset_sha256="s" * 64,
                steps_total=100,
            )
        )  # fmt: skip

    def config(self, **changes: Any) -> RunConfig:
        data = {"text": "t", "label": "l", "kind": "binary"}
        train = {"batch_size": BATCH_SIZE, "steps": changes.pop("steps", 100)}
        return RunConfig.model_validate(
            {"run": "run", "store": self.store.address, "data": data, "train": train} | changes
        )

    @property
    def state(self) -> RunState:
        return self.manifest.load_head().state

    def promote(self, fence: int, *steps: int) -> None:
        for step in steps:
            found = make_checkpoint(self.store, self.folder / "made", step, fence)
            self.manifest.commit("promoted", promote(record_of(found), POLICY))

    def segment(self, *promoted: int, last_step: int | None = None, diverged: int | None = None) -> int:
        """A segment that promotes some steps and ends at a later one, or diverges; its fence."""
        fence = lease_run(self.manifest)
        first_step = self.state.promoted.step if self.state.promoted else 0
        self.promote(fence, *promoted)
        end = diverged or last_step or promoted[-1]
        lost = end - max(promoted, default=first_step)
        record = SegmentRecord(
            fence=fence, outcome="diverged" if diverged else "budget", cause=f"end at {end}", first_step=first_step,
            last_step=end, world_size=1, planned_steps=1000, started_at=1.0, seconds=1.0, steps_lost=lost,
            phases={}, divergence=Divergence(kind="loss", step=diverged) if diverged else None,
        )  # fmt: skip
        self.manifest.commit("ended", end_segment(record))
        return fence

    def roll_back(self, step: int, asked_by: str = ASKED_BY, **changes: Any) -> RunState:
        """What the task does, without Prefect around it."""
        state: RunState
        state, _sentence = inspect.unwrap(by_hand.roll_back)(self.config(**changes), step, asked_by)
        return state


def run_paths_of(store: Any, folder: Path) -> RunPaths:
    return RunPaths(store, Manifest(store, "run"), folder / "scratch", folder / "data")


@pytest.fixture
def run(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_the_kept_checkpoint_is_the_resume_point_and_what_came_after_it_is_left_out(run: Trained) -> None:
    run.segment(10, 20)
    fence = run.segment(30, 40, last_step=43)
    state = run.roll_back(20)
    assert state == run.state
    assert [record.step for record in state.kept] == [20, 10]
    assert state.promoted == state.kept[0]
    (record,) = state.rollbacks
    assert (record.fence, record.resume_step, record.diverged_step) == (fence, 20, 40)
    assert (record.first_position, record.end_position) == (20 * BATCH_SIZE, 40 * BATCH_SIZE)
    assert (record.asked_by, record.cause) == (ASKED_BY, "A person asked for it, by the flow run 1234.")
    assert first_position(20, BATCH_SIZE, state.rollbacks) == 40 * BATCH_SIZE
    assert state.steps_lost == 0
    assert run.manifest.load_head().event == "rolled back by hand to step 20"


def test_it_is_told_as_asked_for_by_hand_and_the_audit_accepts_it(run: Trained) -> None:
    run.segment(10, 20, 30)
    state = run.roll_back(20)
    told = " ".join(shown(render_status(read_status(run.store, "run"))).split())
    assert "The run was rolled back by hand: 1. A person asked for it, by the flow run 1234. So the run went back to "
    assert "step 20, and on from there without the 80 samples that it had come to since then (positions" in told
    assert "Training diverged" not in told
    assert find_unfounded(state, BATCH_SIZE) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"end_position": 30 * BATCH_SIZE + 1},
            "leaves out positions 160 to 240; what was taken since that step is",
        ),
        ({"diverged_step": 31}, "leaves step 31 behind; that segment came to 30"),
        ({"fence": 99}, "names a segment that the manifest does not have"),
        ({"asked_by": None}, "has no reason: the manifest knows no divergence of that segment"),
    ],
)
def test_a_forged_rollback_by_hand_is_named_by_the_audit(run: Trained, changes: dict[str, Any], message: str) -> None:
    run.segment(10, 20, 30)
    state = run.roll_back(20)
    forged = state.model_copy(update={"rollbacks": [state.rollbacks[0].model_copy(update=changes)]})
    assert message in " ".join(violation.message for violation in find_unfounded(forged, BATCH_SIZE))


def test_a_request_is_answered_once_however_often_its_flow_run_begins_anew(run: Trained) -> None:
    run.segment(10, 20, 30)
    run.roll_back(20)
    run.segment(30, 40)
    state = run.state
    assert run.roll_back(20) == state
    assert run.roll_back(10, asked_by=ASKED_BY) == state
    assert len(run.roll_back(20, asked_by="flow run 5678").rollbacks) == 2


def test_killed_at_any_operation_on_the_store_the_same_request_comes_to_the_same_run(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.segment(10, 20)
    run.manifest.commit("segment began", take_lease(dead_process(), world_size=1))
    run.promote(run.manifest.load_head().generation, 30)
    seen = set()
    for at in itertools.count(1):
        store = LocalStore(Path(shutil.copytree(run.store.root, tmp_path / f"store-{at}")))
        cut_off: Any = StoreCutOff(store, at, ProcessGoneError())
        cut_off_run_paths, run_paths = (run_paths_of(found, tmp_path / f"{at}") for found in (cut_off, store))
        with monkeypatch.context() as patch, contextlib.suppress(ProcessGoneError):
            patch.setattr(by_hand, "open_run_paths", lambda _, run_paths=cut_off_run_paths: run_paths)
            run.roll_back(20)
        monkeypatch.setattr(by_hand, "open_run_paths", lambda _, run_paths=run_paths: run_paths)
        head = Manifest(store, "run").load_head()
        seen.add((head.state.lease is not None, len(head.state.rollbacks)))
        state = run.roll_back(20)
        assert [(r.resume_step, r.first_position, r.end_position) for r in state.rollbacks] == [(20, 160, 240)]
        assert (state.lease, [record.step for record in state.kept]) == (None, [20, 10])
        assert [segment.outcome for segment in state.segments] == ["budget", "lost"]
        if cut_off.num_calls < at:
            break
    assert seen == {(True, 0), (False, 0), (False, 1)}  # before and after the segment was settled, and at the end


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (25, r"cannot go back to step 25: that step has no checkpoint that is kept\..*earlier steps: 20, 10\."),
        (30, r"cannot go back to step 30: that step is where the run stands\..*earlier steps: 20, 10\."),
    ],
)
def test_without_such_a_checkpoint_it_is_refused_with_those_that_are_kept(
    run: Trained, step: int, message: str
) -> None:
    run.segment(10, 20, 30)
    generation = run.manifest.load_head().generation
    with pytest.raises(ConfigurationError, match=message):
        run.roll_back(step)
    assert run.manifest.load_head().generation == generation


def test_a_run_in_training_is_not_touched(run: Trained) -> None:
    living_holder = parent_process()
    run.segment(10, 20, 30)
    run.manifest.commit("segment began", take_lease(living_holder, world_size=1))
    generation = run.manifest.load_head().generation
    with pytest.raises(RunBusyError, match="is being trained by process"):
        run.roll_back(20)
    with pytest.raises(RunBusyError):
        run.manifest.commit("rolled back", roll_back_by_hand(20, ASKED_BY, 1.0, BATCH_SIZE))
    assert run.manifest.load_head().generation == generation
    plan = describe_plan(run.config(), None, back_to_step=20)
    assert f"unless process {living_holder.pid} on {living_holder.host} still trains it" in plan


def test_a_first_segment_whose_machine_died_is_settled_and_then_the_run_goes_back(run: Trained) -> None:
    lease = run.manifest.commit("segment began", take_lease(dead_process(), world_size=1)).state.lease
    assert lease is not None
    run.promote(lease.fence, 10, 20)
    assert describe_plan(run.config(), None, back_to_step=10).startswith("Would go back to step 10, ")
    state = run.roll_back(10)
    assert [segment.outcome for segment in state.segments] == ["lost"]
    assert (state.rollbacks[0].fence, state.promoted and state.promoted.step) == (lease.fence, 10)
    assert find_unfounded(state, BATCH_SIZE) == []


def test_what_may_not_change_is_refused_before_the_run_goes_back(run: Trained) -> None:
    run.segment(10, 20, 30)
    generation = run.manifest.load_head().generation
    with pytest.raises(IncompatibleRunError, match="has already made 20 steps"):
        run.roll_back(20, steps=15)
    assert run.manifest.load_head().generation == generation
    assert run.roll_back(20, steps=25).rollbacks  # behind where it stood, but not behind where it goes back to


def test_a_dry_run_says_what_would_happen_and_writes_nothing(run: Trained) -> None:
    run.segment(10, 20, 30)
    generation = run.manifest.load_head().generation
    config = run.config(divergence={"learning_rate_factor": 0.5})
    assert describe_plan(config, None, back_to_step=20) == (
        "Would go back to step 20, and on from there without the 80 samples that it had come to since then (positions "
        "160 to 239 of the order), with 0.5 times the scheduled learning rate. Would train run to its end, from step "
        "20 of 100. Changed: divergence.learning_rate_factor: was 1.0, is 0.5 now."
    )
    assert run.manifest.load_head().generation == generation
    with pytest.raises(ConfigurationError, match="earlier steps: 20, 10"):
        describe_plan(config, None, back_to_step=5)


def test_a_divergence_for_which_no_rollback_is_left_is_answered_by_hand_with_the_samples_that_led_there(
    run: Trained,
) -> None:
    run.segment(10, 20, 30, diverged=38)
    state = run.roll_back(20, divergence={"max_rollbacks": 0})
    assert state.unanswered_divergence is None
    (record,) = state.rollbacks
    assert (record.diverged_step, record.end_position) == (38, 38 * BATCH_SIZE)
    assert find_unfounded(state, BATCH_SIZE) == []


def test_samples_that_an_earlier_rollback_left_out_do_not_come_back(run: Trained) -> None:
    run.segment(10, 20, 30, 40, diverged=43)
    answered = answer_divergence(
        run.config(divergence={"rollback_steps": 15, "consecutive_steps": 5}), open_run_paths(run.config())
    )
    assert (answered.rollbacks[0].resume_step, answered.promoted and answered.promoted.step) == (28, 20)
    state = run.roll_back(10)
    assert state.rollbacks[-1].end_position == 43 * BATCH_SIZE
    assert find_unfounded(state, BATCH_SIZE) == []


def test_what_a_person_asked_for_is_no_attempt_that_a_divergence_has(run: Trained) -> None:
    run.segment(10, 20, 30)
    run.roll_back(20)
    run.segment(diverged=25)
    config = run.config(divergence={"max_rollbacks": 1, "rollback_steps": 10, "consecutive_steps": 5})
    state = answer_divergence(config, open_run_paths(config))
    assert [record.asked_by for record in state.rollbacks] == [ASKED_BY, None]
