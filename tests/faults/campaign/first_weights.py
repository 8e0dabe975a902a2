"""A machine that dies at every operation on the first weights of a run that begins with a pretrained model.

Invariant: each of these runs is begun again by the next command, and must come to the weights of one that nothing
disturbed. The model is another one than the site's, so its weights are others than those of the undisturbed run.
"""

from pathlib import Path

from tests.faults.campaign.points import find_points
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import CONFIGURATION, Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, read_fired, read_trace
from tests.helpers.pretrained import write_tiny_bert

MODEL_SECTION = "[model]"


def die_while_beginning(site: Site) -> Attempt:
    """Let a run begin undisturbed, and then others that die once on that way."""
    configuration, folder = _write_configuration(site), site.new_folder("traced")
    undisturbed = _new_run(site, configuration)
    with FaultPlan().traced().injected(undisturbed, folder):
        undisturbed.run()
    reference = undisturbed.status()
    points = [point for point in find_points(read_trace(folder)) if "/start/" in point.subject]
    problems, fired = [], 0
    for point in points:
        runner, folder = _new_run(site, configuration), site.new_folder("killed")
        with FaultPlan().kill(point.moment, death="power").injected(runner, folder):
            runner.call("run")
            fired += bool(read_fired(folder))
        ended = runner.call("run")
        said = f"{ended.stdout}{ended.stderr}"
        problem = said if ended.returncode != 0 else site.find_difference(runner, reference)
        if problem:
            problems.append(f"{point}: {problem}")
    return Attempt(len(points), fired, "bad" if problems else "equal", "; ".join(problems))


def _write_configuration(site: Site) -> Path:
    """That of the campaign with a pretrained model in place of our encoder."""
    folder = site.new_folder("pretrained")
    model = write_tiny_bert(folder / "model")
    before, _, after = CONFIGURATION.read_text(encoding="utf-8").partition(MODEL_SECTION)
    section = f'{MODEL_SECTION}\nkind = "pretrained"\nname = "{model}"\n\n'
    path = folder / "run.toml"
    path.write_text(f"{before}{section}{after[after.index('[') :]}", encoding="utf-8")
    return path


def _new_run(site: Site, configuration: Path) -> Runner:
    """A run that has not begun yet, with the site's settings but for those of our encoder."""
    runner = site.new_run("pretrained")
    settings = {name: value for name, value in runner.settings.items() if not name.startswith("model__")}
    return Runner(configuration, settings, runner.environment)
