"""SIGKILL for all ranks of a segment of `Runs`, at a random moment that it surely lives to see."""

import random
import signal
import time
from functools import partial
from typing import Any

from storage.runs.segments import find_outcome
from tests.helpers.elastic_runs import Runs
from tests.helpers.processes import RankProcesses, assembling_ahead
from tests.helpers.training import read_log
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.world import World


def kill_at_a_random_moment(spec: SegmentSpec, runs: Runs, chance: random.Random, most_checkpoints: int = 3) -> None:
    """SIGKILL for all ranks at once, some time after one of the segment's first checkpoints.

    The segment begins at step 0 and would go on for at least three steps after the last of them.
    """
    num_checkpoints, seconds = chance.randint(1, most_checkpoints), chance.uniform(0, 0.05 * spec.train.ranks)
    last_step = most_checkpoints * spec.checkpoint.every_steps
    assert spec.validation.every_steps is not None
    # Asked once at each step, the first one included, and once in each validation.
    num_answers = last_step + last_step // spec.validation.every_steps + 3
    ranks = RankProcesses(spec, partial(train_and_wait_to_be_killed, num_answers=num_answers))
    ranks.start()
    try:
        while len(runs.checkpoints_of(spec)) < num_checkpoints:
            assert all(process.is_alive() for process in ranks.processes), read_log(spec)
            time.sleep(0.01)  # a store does not signal what was put into it
        time.sleep(seconds)  # the random moment
    finally:
        exit_codes = ranks.kill()
    assert exit_codes == [-signal.SIGKILL] * spec.train.ranks, read_log(spec)
    assert find_outcome(runs.store, spec.run, spec.fence) is None


class HeldFlag(StopFlag):
    """Asked so many times, never answers again: however late the kill comes, it hits a segment that lives."""

    def __init__(self, num_answers: int) -> None:
        super().__init__()
        self._num_answers = num_answers

    def reason(self) -> StopReason:
        self._num_answers -= 1
        if self._num_answers < 0:
            signal.pause()
        return super().reason()


def train_and_wait_to_be_killed(spec: SegmentSpec, world: World, num_answers: int) -> Any:
    return run_segment(spec, world, HeldFlag(num_answers), assembling_ahead(world))
