"""A machine that dies at every operation on the first weights of a run that begins with a pretrained model.

Invariant: such runs have a site of their own, since their model, and so their weights, are others.
"""

from collections.abc import Callable
from pathlib import Path

from tests.faults.campaign import chains
from tests.faults.campaign.points import Point, find_points
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import DEATH_STEP, Site
from tests.helpers.fault_plans import FaultPlan, read_trace
from tests.helpers.pretrained import write_tiny_bert

MODEL_SECTION = "[model]"


def die_while_beginning(site: Site, on_point: Callable[[Point], None]) -> Attempt:
    """Let a run begin undisturbed, and then others that die on that way."""
    own = _make_site(site)
    own.prepare()
    points = _trace(own)
    chain = chains.kill_at_each(own, points, [], "power", on_point)
    problems = [*chain.problems, *(f"never met: {point}" for point in chain.never_met)]
    return Attempt(len(points), len(chain.killed), "bad" if problems else "equal", "; ".join(problems))


def _make_site(site: Site) -> Site:
    """With a pretrained model in place of our encoder."""
    folder = site.new_folder("pretrained")
    model = write_tiny_bert(folder / "model")
    before, _, after = site.configuration.read_text(encoding="utf-8").partition(MODEL_SECTION)
    section = f'{MODEL_SECTION}\nkind = "pretrained"\nname = "{model}"\n\n'
    configuration: Path = folder / "run.toml"
    configuration.write_text(f"{before}{section}{after[after.index('[') :]}", encoding="utf-8")
    settings = {name: value for name, value in site.settings.items() if not name.startswith("model__")}
    return Site(folder, site.environment, site.ranks, configuration, settings)


def _trace(site: Site) -> list[Point]:
    runner, folder = site.new_run("traced"), site.new_folder("traced")
    with FaultPlan().traced().kill_at_step(DEATH_STEP, rank=0, death="machine").injected(runner, folder):
        runner.call("run")
    return [point for point in find_points(read_trace(folder), was_killed=True) if "/start/" in point.subject]
