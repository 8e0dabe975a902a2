"""A kill at every operation of `holdfast prune`.

Invariant: each of them ends, after a second prune, in the very files that a prune leaves that nothing disturbs.
"""

from collections.abc import Sequence
from pathlib import Path

from storage.objects.local_store import LocalStore
from tests.faults.campaign.damage import find_damage
from tests.faults.campaign.points import Point, find_points
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, read_fired, read_trace

POLICY = {"checkpoint__keep": 2, "checkpoint__keep_best": 0}


def trace_prune(site: Site) -> list[Point]:
    """The points of a prune."""
    runner, folder = site.copy_undisturbed(), site.new_folder("pruned")
    with FaultPlan().traced().injected(runner, folder):
        _prune(runner)
    return find_points(read_trace(folder))


def kill_at_each(site: Site, points: Sequence[Point]) -> Attempt:
    """Prune a copy of the run once for each point; the machine dies there, and whoever comes next prunes again."""
    undisturbed = site.copy_undisturbed()
    _prune(undisturbed)
    expected, problems, fired = _files(undisturbed), [], 0
    for point in points:
        runner, folder = site.copy_undisturbed(), site.new_folder("pruned")
        with FaultPlan().kill(point.moment, death="power").injected(runner, folder):
            runner.call("prune", **POLICY)
        fired += len(read_fired(folder))
        problem = _find_problem(runner, expected)
        if problem is not None:
            problems.append(f"{point}: {problem}")
    return Attempt(len(points), fired, "bad" if problems else "equal", "; ".join(problems))


def _find_problem(runner: Runner, expected: set[str]) -> str | None:
    store, run = LocalStore(Path(runner.settings["store"])), str(runner.settings["run"])
    damage = find_damage(store, run)
    if damage is not None:
        return f"after the kill: {damage}"
    ended = runner.call("prune", **POLICY)
    if ended.returncode != 0:
        return f"prune ended with {ended.returncode}: {ended.stdout[-300:]}{ended.stderr[-300:]}"
    damage = find_damage(store, run)
    if damage is not None:
        return f"after the second prune: {damage}"
    found = _files(runner)
    return None if found == expected else f"left {sorted(found ^ expected)}"


def _prune(runner: Runner) -> None:
    ended = runner.call("prune", **POLICY)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _files(runner: Runner) -> set[str]:
    """Every file but the generations: their number depends on how often somebody had to prune."""
    root = Path(runner.settings["store"])
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {name for name in names if "/manifest/" not in name and not name.startswith(".tmp/")}
