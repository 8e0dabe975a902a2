"""A sample that makes the loss NaN, and a machine that dies at every operation of the rollback that answers it.

Invariant: each of these runs must come to the weights of the one that met the sample and nothing else. That one left
samples out, so its weights are others than those of the undisturbed run.
"""

from typing import Any

from tests.faults.campaign.points import Point, find_points
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, read_fired, read_trace

POISON = FaultPlan().nan(row=100)
ROLLBACK: dict[str, Any] = {"divergence__rollback_steps": 10}


def die_in_rollback(site: Site) -> Attempt:
    """Let a run be rolled back, and then others that die once on that way."""
    met, points, problem = _trace_rollback(site)
    problems, fired = [problem] if problem else [], 0
    for point in points:
        runner, folder = site.new_run("poisoned", **ROLLBACK), site.new_folder("poisoned")
        with POISON.kill(point.moment, death="power").injected(runner, folder):
            runner.call("run")
            fired += any(mark["fault"] == 1 for mark in read_fired(folder))
            ended = runner.call("run")
        problem = f"{ended.stdout}{ended.stderr}" if ended.returncode != 0 else _find_difference(site, runner, met)
        if problem:
            problems.append(f"{point}: {problem}")
    return Attempt(len(points), fired, "bad" if problems else "equal", "; ".join(problems))


def _trace_rollback(site: Site) -> tuple[dict[str, Any], list[Point], str | None]:
    """The run that only meets the sample, the points of its rollback, and what is wrong with it."""
    runner, folder = site.new_run("poisoned", **ROLLBACK), site.new_folder("poisoned")
    with POISON.traced().injected(runner, folder):
        runner.run()
    met = runner.status()
    points = [point for point in find_points(read_trace(folder)) if "rolled back" in point.subject]
    problem = None if met["rollbacks"] else "the sample was not met, or did no harm"
    return met, points, problem or _find_difference(site, runner, met)


def _find_difference(site: Site, runner: Runner, met: dict[str, Any]) -> str | None:
    """What is wrong with a run, in words. The audit accepts no other samples left out than its rollbacks name."""
    names = ("first_position", "end_position", "diverged_step")
    left_out = [[[record[name] for name in names] for record in s["rollbacks"]] for s in (runner.status(), met)]
    if left_out[0] != left_out[1]:
        return f"rollbacks {left_out[0]}, expected {left_out[1]}"
    return site.find_difference(runner, met)
