"""Segments whose ranks are killed one at a time, and the one rank that they are held against."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import FoundCheckpoint
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster import ranks
from tasks.cluster.processes import POLL_SECONDS
from tests.helpers.elastic_runs import Runs
from tests.helpers.fault_plans import FaultPlan
from tests.helpers.processes import LONGEST_SECONDS, assembling_ahead
from tests.helpers.training import launch, read_log, read_state, train_forked
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


def train_to_end(spec: SegmentSpec, runs: Runs) -> OutcomeRecord:
    with launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            pass
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None, read_log(spec)
    return outcome


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
