"""Ranks that die while the others live: at operations of theirs, and in numbers.

Invariant: a death is that of one process, and nobody starts the command again. Besides the undisturbed weights it is
asked in how many segments they came about: in one, wherever the others can go on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

from tests.faults.campaign.disturbances import continue_to_end
from tests.faults.campaign.points import Point
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import STEPS, Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, FileFault, StepFault, read_fired

# The parts of the work in which ranks write and read.
PHASES = ("save", "outcome", "restore")
# Before the first validation, and at it: its model is the best so far, and is saved while the next steps are made.
EARLY, VALIDATED = STEPS // 2 - 5, STEPS // 2
# Of each part, drawn anew each time: a run for a few of them takes seconds.
MOST_POINTS = 20
# As often as a rank may die within ten minutes and be begun again: a third time it stays out.
DEATHS_OF_ONE = 2
FOUR = {"train__ranks": 4}


@dataclass(frozen=True)
class Deaths:
    """Deaths of ranks that the others go on after, in one segment."""

    name: str
    plan: FaultPlan
    settings: dict[str, Any] = field(default_factory=dict)


def killed_at(point: str, rank: int = 1, step: int = EARLY) -> FaultPlan:
    """A rank dies at this point within a step, or before the validation behind it."""
    return FaultPlan().having(StepFault("process", rank, step, point=point))  # type: ignore[arg-type]


DEATHS = (
    Deaths("the first rank", FaultPlan().kill_at_step(EARLY, rank=0)),
    Deaths("another rank", FaultPlan().kill_at_step(EARLY, rank=1)),
    Deaths("the first rank, when a part of its sum was sent", killed_at("sent", rank=0)),
    Deaths("the first rank, before it changes the weights", killed_at("summed", rank=0)),
    Deaths("another rank, before it changes the weights", killed_at("summed")),
    Deaths("another rank, before a validation", killed_at("validate", step=VALIDATED)),
    Deaths("the first rank, which writes a share of the best model", killed_at("summed", rank=0, step=VALIDATED)),
    Deaths("another rank, which writes a share of the best model", killed_at("summed", step=VALIDATED)),
    Deaths("three of four ranks in turn", FaultPlan().kill_at_step(9, 0).kill_at_step(20, 1).kill_at_step(45, 2), FOUR),
    Deaths("two of four ranks at one step", FaultPlan().kill_at_step(EARLY, 0).kill_at_step(EARLY, 2), FOUR),
    Deaths(
        "three of four ranks within three steps",
        FaultPlan().kill_at_step(EARLY, 3).kill_at_step(EARLY + 1, 1).kill_at_step(EARLY + 2, 0),
        FOUR,
    ),
)


def go_on_after(site: Site, deaths: Deaths) -> Attempt:
    """Let ranks of one run die, and look how it ended by itself."""
    runner, folder = site.new_run("survived", **deaths.settings), site.new_folder("survived")
    with deaths.plan.injected(runner, folder):
        ended = runner.call("run")
    num_fired, num_points = len(read_fired(folder)), len(deaths.plan.faults)
    problem = f"{ended.stdout}{ended.stderr}" if ended.returncode else site.find_difference(runner)
    if problem is None and (segments := runner.status()["segments"])[1:]:
        problem = f"{len(segments)} segments: {[segment['cause'] for segment in segments]}"
    return Attempt(num_points, num_fired, "bad" if problem else "equal", problem or "")


def die_at_each(site: Site, points: Sequence[Point], say: Callable[[Point], object]) -> Attempt:
    """Let a rank die at each of these operations of ranks, a few in each run; the note says in how many segments.

    What a run does not come to after the deaths before, it meets by itself, or a run that a dead machine left does.
    """
    died = _Died(site, say)
    left = [point for group in _group(points) for point in died.go_on(site.new_run("survived"), group)]
    left = [point for lone in left for point in died.go_on(site.new_run("survived"), [lone])]
    left = [point for lone in left for point in died.go_on(site.new_dead_run(), [lone])]
    problems = [*died.problems, *(f"never met: {point}" for point in left)]
    note = "; ".join(problems) or f"{died.num_runs} runs in {died.num_segments} segments"
    return Attempt(len(points), len(points) - len(left), "bad" if problems else "equal", note)


class _Died:
    """What became of runs whose ranks died."""

    def __init__(self, site: Site, say: Callable[[Point], object]) -> None:
        self.problems: list[str] = []
        self.num_runs = self.num_segments = 0
        self._site = site
        self._say = say

    def go_on(self, runner: Runner, points: Sequence[Point]) -> list[Point]:
        """Let ranks of this run die at the first such operation that each of them comes to; those that none came to."""
        folder = self._site.new_folder("survived")
        plan = FaultPlan(tuple(FileFault(replace(point.moment, nth=1), "process") for point in points))
        self._say(points[0])
        with plan.injected(runner, folder):
            ended = runner.call("run")
        # Who dies before training begins, or in the evaluation, costs one of the attempts that a command has.
        problem = continue_to_end(self._site, runner) if ended.returncode else self._site.find_difference(runner)
        self.num_runs += 1
        if problem is None:
            self.num_segments += len(runner.status()["segments"])
        else:
            self.problems.append(f"{runner.settings['run']}, killed at {'; '.join(map(str, points))}: {problem}")
        met = {int(mark["fault"]) for mark in read_fired(folder)}
        return [point for number, point in enumerate(points) if number not in met]


def _group(points: Sequence[Point]) -> Iterator[list[Point]]:
    """So many of each rank as a run survives in one segment. Those of whichever rank comes first are met by any."""
    ranks = sorted({point.moment.rank for point in points}, key=str)
    of_each = [[point for point in points if point.moment.rank == rank] for rank in ranks]
    shares = [[own[at : at + DEATHS_OF_ONE] for at in range(0, len(own), DEATHS_OF_ONE)] for own in of_each]
    for together in zip_longest(*shares, fillvalue=()):
        yield list(chain.from_iterable(together))
