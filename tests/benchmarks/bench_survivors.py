"""`make bench-survivors`: a random one of four ranks is killed again and again; for how long the others pause.

A small model on CPUs, one segment, killed as soon as no rank is missing and some moments later. Pauses are from SIGKILL
to when training goes on without the rank, by the file that the first rank writes then; from there to when its
successor has joined and training goes on with it. At the end the checkpoint is held against that of one rank that made
as many steps. The last line is for machines: `name=value` pairs.
"""

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from storage.runs.segments import find_outcome
from tasks.cluster.processes import POLL_SECONDS
from tests.helpers.elastic_runs import Runs
from tests.helpers.survivors import dying_often, newest_complete, train_as_far
from tests.helpers.training import launch, read_log
from training.agents.locks import find_holders
from training.spec import SegmentSpec
from training.views.folder import ViewFolder

NUM_RANKS = 4
STEPS, EVERY_STEPS = 1_000_000, 200
MOST_MOMENTS_SECONDS = 1.0
GRACE_SECONDS = 60.0


class Figures(NamedTuple):
    """What came of it; pauses, and times to the successor's first step, in seconds. `is_same`: as of one rank."""

    kills: int
    is_same: bool
    pause: float
    pause_p95: float
    longest_pause: float
    joined: float
    longest_joined: float


def main() -> None:
    """Kill as often as is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    num_kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name))
        train: dict[str, Any] = {"steps": STEPS, "every_steps": EVERY_STEPS, "background": True}
        spec = runs.next_spec(NUM_RANKS, **train)
        killed_at = kill(spec, num_kills)
        outcome = find_outcome(runs.store, spec.run, spec.fence)
        assert outcome is not None and outcome.outcome == "preempted", read_log(spec)
        pauses, joins = find_pauses(spec, killed_at)
        found = runs.newest_of(spec)
        expected = train_as_far(found, runs, **train)[found.index.step]
        is_same = found.index.files == expected.index.files
        figures = Figures(
            num_kills, is_same, statistics.median(pauses), quantile(pauses), max(pauses),
            statistics.median(joins), max(joins),
        )  # fmt: skip
        print(
            f"{num_kills} kills in {outcome.last_step:,} steps and {outcome.seconds:.0f} s; a checkpoint was read: "
            f"{'restore' in outcome.phases}; load {os.getloadavg()[0]:.1f}."
        )
        print(" ".join(f"{name}={value:.4g}" for name, value in figures._asdict().items()))


def kill(spec: SegmentSpec, num_kills: int) -> list[float]:
    """Kill so often, then have the ranks save and leave; when, by the clock of files."""
    views, before = ViewFolder(spec.scratch_folder), -1
    killed_at: list[float] = []
    with dying_often(), launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            number = newest_complete(views, NUM_RANKS)
            if number is None or number == before:
                continue
            before = number
            if len(killed_at) == num_kills:
                ranks.stop()
                continue
            ranks.is_running(random.uniform(0, MOST_MOMENTS_SECONDS))
            victim = random.choice([holder for holder in find_holders(spec.scratch_folder) if holder.rank is not None])
            killed_at.append(time.time())
            os.kill(victim.pid, signal.SIGKILL)
    return killed_at


def find_pauses(spec: SegmentSpec, killed_at: list[float]) -> tuple[list[float], list[float]]:
    """After each kill, in seconds: to when training went on, and from there to when none was missing any more."""
    views, kills = ViewFolder(spec.scratch_folder), iter(killed_at)
    pauses: list[float] = []
    joins: list[float] = []
    killed, went_on = None, 0.0
    for view, going in views.all_views():
        if view.lost:
            killed = next(kills)
        if going is None:
            continue
        at = views.going_file(view.number).stat().st_mtime
        if killed is not None:
            pauses.append(at - killed)
            killed, went_on = None, at
        if len(view.members) == NUM_RANKS:
            joins.append(at - went_on)
    return pauses, joins


def quantile(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


if __name__ == "__main__":
    main()
