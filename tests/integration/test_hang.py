"""Ranks that do not get on are killed, and what became of them is written down."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from storage.objects.local_store import LocalStore
from tasks.preemption.signals import StopRequest
from tasks.supervision.hang import HangWatch
from tasks.supervision.watch import supervise
from tests.helpers.commands import processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import launch, make_spec, read_log
from training.agents.locks import find_holders
from training.metrics.reporter import Report
from training.spec import SegmentSpec

# As short as may be: the report from which the ranks are watched is the one at which they are stopped, so that no
# slow machine makes them silent in between.
PATIENCE_SECONDS = 3.0
LAST_REPORTED_STEP = 1
GRACE_SECONDS = 2.0


def test_ranks_that_report_are_followed_and_those_that_are_silent_for_too_long_are_killed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)
    steps: list[int] = []
    # They start in silence, and that may take long: they are watched from the first report on.
    watch = _Watch(PATIENCE_SECONDS)

    def take(report: Report) -> None:
        steps.append(report.step)
        if report.step >= LAST_REPORTED_STEP:
            for pid in processes_mentioning(str(spec.scratch_folder)):
                os.kill(pid, signal.SIGSTOP)

    with launch(spec) as ranks:
        assert supervise(ranks, watch, StopRequest(), take)
        assert not ranks.is_running(0)
    assert processes_mentioning(str(spec.scratch_folder)) == []
    assert steps[-1] >= LAST_REPORTED_STEP
    outcome = watch.describe_end(spec.train.ranks)
    assert (outcome.outcome, outcome.last_step, outcome.world_size) == ("failed", steps[-1], 2)
    assert f"reported nothing for {PATIENCE_SECONDS:g} s (segment.hang_seconds)" in outcome.cause


def test_of_ranks_that_wait_for_one_that_does_not_come_the_log_says_where_each_stands(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)

    with launch(spec) as ranks:
        assert supervise(ranks, _Watch(PATIENCE_SECONDS), StopRequest(), _stopping(spec, rank=1))
    _, of_first, of_second = (tmp_path / "segment/ranks.log").read_text().split("stacks of rank ")
    assert of_first.startswith("0:") and "training/loop.py" in of_first and "training/agents/rank.py" in of_first
    assert of_second.startswith("1:\n[rank1]: nothing was written within")


def test_a_rank_that_stands_still_while_the_other_waits_is_named_and_costs_less_than_hang_seconds(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)
    watch = _Watch(hang_seconds=3_600, lost_seconds=10)
    with launch(spec) as ranks:
        assert supervise(ranks, watch, StopRequest(), _stopping(spec, rank=1))
    assert watch.cause.startswith("Rank 1 on ")
    # For what: that depends on where the stop found them.
    assert re.search(r"1 other rank waits at step [\d,]+ for [a-z]", watch.cause)
    assert "the process stands still, while others of its machine do not." in watch.cause
    assert "reported nothing for 10 s (segment.lost_seconds) and were killed" in watch.cause


def test_a_rank_that_waits_for_one_that_does_not_come_does_not_outlive_its_launcher_for_long(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)
    stopped: list[int] = []

    def take(report: Report) -> None:
        if report.step >= LAST_REPORTED_STEP and not stopped:
            stopped.append(_stop(spec, rank=1))
            (agent,) = [one for one in find_holders(spec.scratch_folder) if one.rank is None]
            os.kill(agent.pid, signal.SIGKILL)

    with launch(spec, GRACE_SECONDS) as ranks:
        assert not supervise(ranks, _Watch(PATIENCE_SECONDS), StopRequest(), take)
        try:
            assert wait_until(lambda: processes_mentioning(str(spec.scratch_folder)) == stopped)
        finally:
            os.kill(stopped[0], signal.SIGKILL)
    assert "was killed 2 s ago" in read_log(spec)


def _stopping(spec: SegmentSpec, rank: int) -> Callable[[Report], None]:
    """Stops this rank's process when the first step is reported."""

    def take(report: Report) -> None:
        if report.step >= LAST_REPORTED_STEP:
            _stop(spec, rank)

    return take


def _stop(spec: SegmentSpec, rank: int) -> int:
    """The process that was stopped, wherever it was: it may hold a lock for which the other rank waits."""
    (pid,) = [one.pid for one in find_holders(spec.scratch_folder) if one.rank == rank]
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return pid


class _Watch(HangWatch):
    """Waits for a first report for as long as it takes."""

    def is_hung(self) -> bool:
        return self.last_step > 0 and super().is_hung()
