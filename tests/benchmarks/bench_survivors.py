"""`make bench-survivors`: a random one of four ranks is killed again and again; what that costs the others.

A small model on CPUs, one segment. The next kill comes when no rank is missing and some moments later, or `--every` so
many seconds. By the files in which the first rank notes that training goes on: the pause is from SIGKILL to when the
others go on, the join from there to when the successor trains with them. What a kill costs is the time until then, less
the time that the undisturbed ranks took just before for as many steps. At the end the checkpoint is held against that
of one rank that made as many steps, alone. With `--nodes` the ranks are on so many nodes, and it is measured what the
pause is made of (`survivors_of_nodes.py`). The last line is for machines: `name=value` pairs.
"""

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from storage.runs.segments import find_outcome
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.reports import ReportFollower
from tasks.reporting.canvas import BLUE, VERMILION, draw_svg
from tests.benchmarks.survivors_of_nodes import measure, quantile
from tests.helpers.elastic_runs import Runs
from tests.helpers.survivors import dying_often, newest_complete, train_as_far
from tests.helpers.training import launch, read_log
from training.agents.locks import find_holders
from training.spec import SegmentSpec
from training.views.account import all_views
from training.views.folder import ViewFolder

NUM_RANKS = 4
STEPS, EVERY_STEPS = 1_000_000, 200
MOST_MOMENTS_SECONDS = 1.0
GRACE_SECONDS = 60.0
# One rank alone makes the steps of four.
LONGEST_SECONDS = 7200.0
DAY_SECONDS, KILLS_OF_DAY = 86_400.0, 24


class Change(NamedTuple):
    """That training went on with so many ranks from a step on, at a time by the clock of files."""

    at: float
    step: int
    num_ranks: int


class Kill(NamedTuple):
    """What came of one kill, in seconds."""

    pause: float
    join: float
    cost: float


class Figures(NamedTuple):
    """What came of all; pauses, joins and costs in seconds. `is_same`: as of one rank."""

    kills: int
    is_same: bool
    pause: float
    pause_p95: float
    longest_pause: float
    join: float
    longest_join: float
    cost: float
    mean_cost: float
    goodput_of_day: float


def main() -> None:
    """Kill as often as is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, help="seconds from kill to kill; the default is as soon as it can be")
    parser.add_argument("--picture", type=Path, help="SVG to write: the steps over time, and the kills")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2, 4), help="on which the four ranks are")
    options = parser.parse_args()
    train: dict[str, Any] = {"steps": STEPS, "every_steps": EVERY_STEPS, "background": True}
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name))
        if options.nodes > 1:
            measure(runs, train, options.nodes, NUM_RANKS, options.kills)
            return
        spec = runs.next_spec(NUM_RANKS, **train)
        with followed(spec) as steps:
            killed_at = kill(spec, options.kills, options.every)
        load = os.getloadavg()[0]
        outcome = find_outcome(runs.store, spec.run, spec.fence)
        assert outcome is not None and outcome.outcome == "preempted", read_log(spec)
        kills = find_kills(find_changes(spec), killed_at)
        if options.picture:
            options.picture.write_text(draw(steps, killed_at))
        print(
            f"{len(kills)} kills in {outcome.last_step:,} steps and {outcome.seconds:.0f} s; a checkpoint was read: "
            f"{'restore' in outcome.phases}; load {load:.1f}."
        )
        print("Each kill:", *(f"{kill.pause:.2f}" for kill in kills), flush=True)
        found = runs.newest_of(spec)
        expected = train_as_far(found, runs, LONGEST_SECONDS, **train)[found.index.step]
        figures = sum_up(kills, found.index.files == expected.index.files)
        print(" ".join(f"{name}={value:.4g}" for name, value in figures._asdict().items()))


@contextmanager
def followed(spec: SegmentSpec) -> Iterator[list[tuple[float, int]]]:
    """The list is filled with what the ranks report while the block goes on: when it was read, and the step."""
    steps: list[tuple[float, int]] = []
    follower, is_over = ReportFollower(spec.progress_file), threading.Event()

    def follow() -> None:
        while not is_over.wait(POLL_SECONDS):
            steps.extend((time.time(), report.step) for report in follower.read() if report.phase == "train")

    following = threading.Thread(target=follow)
    following.start()
    try:
        yield steps
    finally:
        is_over.set()
        following.join()


def kill(spec: SegmentSpec, num_kills: int, every: float | None) -> list[float]:
    """Kill so often, then have the ranks save and leave; when, by the clock of files."""
    views, before = ViewFolder(spec.scratch_folder), -1
    killed_at: list[float] = []
    with dying_often(), launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            number = newest_complete(views, NUM_RANKS)
            if number is None or number == before:
                continue
            before, since = number, time.time() - (killed_at[-1] if killed_at else time.time())
            moments = random.uniform(0, MOST_MOMENTS_SECONDS) if every is None else every - since
            ranks.is_running(max(0.0, moments))
            if len(killed_at) == num_kills:
                ranks.stop()
                continue
            victim = random.choice([holder for holder in find_holders(spec.scratch_folder) if holder.rank is not None])
            killed_at.append(time.time())
            os.kill(victim.pid, signal.SIGKILL)
    return killed_at


def find_changes(spec: SegmentSpec) -> list[Change]:
    """When training began, and went on with other ranks; oldest first."""
    views = ViewFolder(spec.scratch_folder)
    found = [(number, len(view.members), going) for number, (view, going) in enumerate(all_views(views), 1)]
    return [
        Change(views.going_file(number).stat().st_mtime, going.step, num_ranks)
        for number, num_ranks, going in [(0, NUM_RANKS, views.find_going(0)), *found]
        if going is not None
    ]


def find_kills(changes: Sequence[Change], killed_at: Sequence[float]) -> list[Kill]:
    """What came of each kill."""
    kills = []
    for at in killed_at:
        undisturbed = [change for change in changes if change.at < at][-1]
        without = next(change for change in changes if change.at > at)
        together = next(change for change in changes if change.at > at and change.num_ranks == NUM_RANKS)
        seconds_a_step = (at - undisturbed.at) / max(1, without.step - undisturbed.step)
        cost = together.at - at - (together.step - without.step) * seconds_a_step
        kills.append(Kill(without.at - at, together.at - without.at, cost))
    return kills


def sum_up(kills: Sequence[Kill], is_same: bool) -> Figures:
    """The goodput is of a day with as many kills as a day may have, each at the mean cost of these."""
    pauses, joins, costs = zip(*kills, strict=True)
    mean_cost = statistics.mean(costs)
    return Figures(
        len(kills), is_same, statistics.median(pauses), quantile(pauses), max(pauses), statistics.median(joins),
        max(joins), statistics.median(costs), mean_cost, 1 - KILLS_OF_DAY * mean_cost / DAY_SECONDS,
    )  # fmt: skip


def draw(steps: Sequence[tuple[float, int]], killed_at: Sequence[float]) -> str:
    """Steps over time as the ranks reported them, all of it and around the kill in the middle; each kill is a line."""
    began, middle = steps[0][0], killed_at[len(killed_at) // 2]

    def draw_both(figure: Figure) -> None:
        whole, near = figure.subplots(1, 2)
        whole.set_title(f"All of it: {len(killed_at)} kills")
        near.set_title("A minute of it")
        for axes, first, last in ((whole, began, steps[-1][0]), (near, middle - 30, middle + 30)):
            shown = [(at - began, step) for at, step in steps if first <= at <= last]
            for at in killed_at:
                if first <= at <= last:
                    axes.axvline(at - began, color=VERMILION, linewidth=0.8)
            axes.plot(*zip(*shown, strict=True), color=BLUE)
            axes.set_xlabel("seconds")
            axes.set_ylabel("step")

    return draw_svg(9.0, 3.2, draw_both)


if __name__ == "__main__":
    main()
