"""Kills at given points, one after the other, in as few runs as will do.

A run that is killed at one point is continued by a command that is killed at the next one, and so on until it is
complete; then another run begins. So each point costs one start of the command, and runs are killed as often as no
machine would. Invariant: a point counts as tried only if its fault left its mark; one that a command comes to its end
without meeting is tried again in a new run, there at the first time that such an operation takes place, and named if it
is not met either. Saves are written beside training: not every command comes to every point of them, and one that was
traced may have promoted more of them, or deleted two checkpoints where others delete one.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.faults.campaign.points import Point, find_points
from tests.faults.campaign.site import DEATH_STEP, Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import Death, FaultPlan, FileFault, read_fired, read_trace

MAX_TRIES = 3


@dataclass
class Chain:
    """What became of the points: those at which a command died, those never met, and what was wrong with a run."""

    killed: list[Point] = field(default_factory=list)
    never_met: list[Point] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def trace_points(site: Site) -> tuple[list[Point], list[Point]]:
    """Points that only a command has that begins a run, and those of one that takes up a run that was killed."""
    site.dead = site.new_run("dead")
    first, second = site.new_folder("traced"), site.new_folder("traced")
    with FaultPlan().traced().kill_at_step(DEATH_STEP, rank=0, death="machine").injected(site.dead, first):
        site.dead.call("run")
    runner = site.new_dead_run()
    with FaultPlan().traced().injected(runner, second):
        runner.run()
    assert len(read_fired(first)) == 1, "the command that begins a run was not killed on its way"
    continuing = find_points(read_trace(second))
    known = {point.signature for point in continuing}
    begun = find_points(read_trace(first), was_killed=True)
    beginning = [point for point in begun if point.signature not in known]
    return beginning, continuing


def kill_at_each(
    site: Site,
    beginning: Sequence[Point],
    continuing: Sequence[Point],
    death: Death,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Chain:
    """Die once at each of these points, and continue every run to its end."""
    chain, tries = Chain(), Counter[tuple[object, ...]]()
    first, later = deque(beginning), deque(continuing)
    backstop = FaultPlan().kill_at_step(DEATH_STEP, rank=0, death="machine")
    while first or later:
        if first:
            left, runner, plan = first, site.new_run("killed"), backstop
        else:
            left, runner, plan = later, site.new_dead_run(), FaultPlan()
        num_left = len(left)
        while left and _dies_at_next(site, runner, left, plan, death, chain, on_point):
            pass
        if len(left) == num_left:
            tries[left[0].signature] += 1
            if tries[left[0].signature] == MAX_TRIES:
                chain.never_met.append(left.popleft())
            else:
                left[0] = replace(left[0], moment=replace(left[0].moment, nth=1))
        _finish(site, runner, chain)
    return chain


def _dies_at_next(
    site: Site,
    runner: Runner,
    points: "deque[Point]",
    backstop: FaultPlan,
    death: Death,
    chain: Chain,
    on_point: Callable[[Point], None],
) -> bool:
    """Start the command, to be killed at the first of the points; whether it was. `backstop` kills it if not."""
    on_point(points[0])
    folder = site.new_folder("killed")
    with replace(backstop, faults=(FileFault(points[0].moment, death), *backstop.faults)).injected(runner, folder):
        ended = runner.call("run")
    fired = [mark["fault"] for mark in read_fired(folder)]
    if fired[:1] == [0]:
        chain.killed.append(points.popleft())
        return True
    if not fired and ended.returncode != 0:
        chain.problems.append(f"{points[0]}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    return False


def _finish(site: Site, runner: Runner, chain: Chain) -> None:
    ended = runner.call("run")
    problem = f"{ended.stdout}{ended.stderr}" if ended.returncode != 0 else site.find_difference(runner)
    if problem is not None:
        chain.problems.append(f"{runner.settings['run']}: {problem}")
