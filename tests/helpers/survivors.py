"""Segments whose ranks are killed one at a time, and the one rank that they are held against."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import FoundCheckpoint
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster import ranks
from tasks.cluster.agents import KeptAgent
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.injected_process import shorten_history
from tests.helpers.processes import LONGEST_SECONDS, assembling_ahead, train_segment
from tests.helpers.training import read_log, read_state, train_forked
from training.agents.order import AgentOrder
from training.metrics.training_state import TrainingState
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.trainer import Trainer
from training.views.folder import ViewFolder
from training.world import World

LAST_STEP = "last_step"
GRACE_SECONDS = 60.0


def meet(plan: FaultPlan, folder: Path, spec: SegmentSpec, patch: pytest.MonkeyPatch) -> None:
    """Have the ranks that are launched from here on meet the plan."""
    for name, value in plan.environment(folder, [Path(spec.store), spec.scratch_folder]).items():
        patch.setenv(name, value)


class PlannedAgent:
    """An agent that is kept for several segments, each of whose ranks meet a plan of their own.

    To begin an agent takes longer than such a segment. Faults are of ranks alone: the agent itself met an empty plan.
    """

    def __init__(self, kept: KeptAgent, folder: Path) -> None:
        self._kept, self._folder = kept, folder

    def launch(self, spec: SegmentSpec, plan: FaultPlan) -> Ranks:
        """The ranks of a segment, to be used as a context manager; what took place before is forgotten."""
        shutil.rmtree(self._folder)
        plan.environment(self._folder, [Path(spec.store), spec.scratch_folder])
        return Ranks(spec, GRACE_SECONDS, kept=self._kept)

    def train_to_end(self, spec: SegmentSpec, plan: FaultPlan, runs: Runs) -> OutcomeRecord:
        """The outcome of a segment when its ranks are gone. Fails with their log if they left none."""
        with self.launch(spec, plan) as launched:
            while launched.is_running(POLL_SECONDS):
                pass
        outcome = find_outcome(runs.store, spec.run, spec.fence)
        assert outcome is not None, read_log(spec)
        return outcome

    def fired(self) -> list[dict[str, Any]]:
        """What took place of the plan at hand, in order: see `read_fired`."""
        return read_fired(self._folder)


@contextmanager
def planned_agent(folder: Path) -> Iterator[PlannedAgent]:
    """An agent for the block; plans lie in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FaultPlan().environment(folder, []).items():
            patch.setenv(name, value)
        kept = KeptAgent()
    try:
        yield PlannedAgent(kept, folder)
    finally:
        kept.close()


def train_undisturbed(runs: Runs, **train: Any) -> dict[int, FoundCheckpoint]:
    """The checkpoints of one rank without an agent that meets nothing, with a history as short as a plan makes it."""
    return runs.train(1, target=_train_with_short_history, **train)


def _train_with_short_history(spec: SegmentSpec, world: World) -> Any:
    shorten_history()
    return train_segment(spec, world)


@contextmanager
def dying_often() -> Iterator[None]:
    """Ranks that are launched in the block are begun again however often they die."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "AgentOrder", partial(AgentOrder, most_deaths=1_000_000))
        yield


def newest_complete(views: ViewFolder, num_ranks: int) -> int | None:
    """The newest view, if so many ranks are in it and training goes on in it."""
    newest = views.find_newest(0)
    if newest is None:
        return None if views.find_going(0) is None else 0
    is_complete = len(newest.members) == num_ranks and views.find_going(newest.number) is not None
    return newest.number if is_complete else None


def train_as_far(
    found: FoundCheckpoint, runs: Runs, longest_seconds: float = LONGEST_SECONDS, **train: Any
) -> dict[int, FoundCheckpoint]:
    """The checkpoints of one rank that saves and leaves where the ranks did whose last checkpoint this is."""
    spec, step = runs.next_spec(1, **train), found.index.step
    is_validated = read_state(runs.store, found)["validated_step"] == step
    (spec.scratch_folder / LAST_STEP).write_text(json.dumps([step, is_validated]))
    assert train_forked(spec, runs.store, _train_to_last_step, longest_seconds).outcome == "preempted", read_log(spec)
    return runs.checkpoints_of(spec)


def require_as_of_one_rank(spec: SegmentSpec, last_step: int, runs: Runs, **train: Any) -> None:
    """Each checkpoint of a segment that ended at this step, byte for byte, is that of one rank without interruption."""
    found = runs.checkpoints_of(spec)
    assert max(found) == last_step
    expected = train_as_far(found[last_step], runs, **train)
    for step in found:
        require_the_same(found[step], expected[step], runs)


def _train_to_last_step(spec: SegmentSpec, world: World) -> Any:
    last_step, is_validated = json.loads((spec.scratch_folder / LAST_STEP).read_text())
    flag, take_step, record_validation = StopFlag(), Trainer.take_step, TrainingState.record_validation

    def stop() -> None:
        flag.reason = lambda: StopReason.PREEMPTED  # type: ignore[method-assign]

    def stopping_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if step + 1 == last_step and not is_validated:
            stop()
        return take_step(trainer, step, microbatches)

    def stopping_validation(state: TrainingState, *validated: Any) -> Any:
        if state.step == last_step:
            stop()
        return record_validation(state, *validated)

    Trainer.take_step = stopping_step  # type: ignore[method-assign, assignment]
    TrainingState.record_validation = stopping_validation  # type: ignore[method-assign, assignment]
    return run_segment(spec, world, flag, assembling_ahead(world))
