"""Segments whose ranks are killed one at a time, and the one rank that they are held against."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.cluster import ranks
from tests.helpers.processes import assembling_ahead
from training.agents.order import AgentOrder
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.trainer import Trainer
from training.views.folder import ViewFolder
from training.world import World

LAST_STEP = "last_step"


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


def train_to_this_step(spec: SegmentSpec, world: World) -> Any:
    """One rank, which is asked to stop at the step that is written in its folder."""
    last_step, flag, take_step = int((Path(spec.scratch) / LAST_STEP).read_text()), StopFlag(), Trainer.take_step

    def stopping_step(trainer: Trainer, step: int, microbatches: Any) -> Any:
        if step + 1 == last_step:
            flag.reason = lambda: StopReason.PREEMPTED  # type: ignore[method-assign]
        return take_step(trainer, step, microbatches)

    Trainer.take_step = stopping_step  # type: ignore[method-assign, assignment]
    return run_segment(spec, world, flag, assembling_ahead(world))
