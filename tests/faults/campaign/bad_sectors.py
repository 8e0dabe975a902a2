"""One checkpoint that no process can read any more, as where its disk has a bad sector; all others can be read.

Invariant: the run goes on from the next older checkpoint at once, and comes to the weights of the undisturbed one. The
bad one stays where it is, and the manifest says why it is not used.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from storage.checkpoints.checkpoints import INDEX_NAME, list_complete_checkpoints
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.faults.campaign.disturbances import continue_to_end
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import DEATH_STEP, Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired

STORE_SECONDS = 3  # after so long what cannot be read is passed over
# Far more than a run of this size takes, verdict included, on a machine on which others work.
MOST_SECONDS = 400
PASSED_OVER = "cannot be read and is passed over; its files stay"

# How the run came to stand where it is, by what is bad from then on: in each case the newest checkpoint.
DEATHS: Mapping[str, FaultPlan] = {
    "the resume point": FaultPlan()
    .kill_at_step(DEATH_STEP, rank=0)
    .kill(Moment("command", "link", "segment N ended"), "machine"),
    "one that is not promoted yet": FaultPlan().kill(Moment("command", "link", "promoted step N", nth=4), "machine"),
    "that of the last step, before it is evaluated": FaultPlan().kill(
        Moment("command", "link", "evaluation began"), "machine"
    ),
}


class _Checkpoint(NamedTuple):
    """Which of a run's checkpoints; the later one is greater."""

    step: int
    path: str
    fence: int


def go_on_without(site: Site, death: FaultPlan) -> Attempt:
    """Let a run die so, make its newest checkpoint unreadable for ever, and let the run go on to its end."""
    runner = site.new_run("bad-sector", retry__store_seconds=STORE_SECONDS)
    with death.injected(runner, site.new_folder("left")):
        runner.call("run")
    (bad, older), folder = _find_newest(runner), site.new_folder("bad-sector")
    # In every process: ranks that train or evaluate, the command that promotes, scrub.
    plan = FaultPlan().failing(Moment(operation="read", path=f"/{bad.path}/"), "EIO", None)
    with plan.injected(runner, folder):
        began = time.monotonic()
        ended = runner.call("run")
        seconds = time.monotonic() - began
        scrubbed = runner.call("scrub")
    said = ended.stdout + ended.stderr
    if ended.returncode != 0 or "Traceback" in said:
        problem: str | None = f"the run ended with {ended.returncode}: {said[-1000:]}"
    elif seconds > MOST_SECONDS:
        problem = f"it took {seconds:.0f} s"
    elif scrubbed.returncode != 0:
        problem = f"scrub: {scrubbed.stdout}{scrubbed.stderr}"
    else:
        problem = _find_wrong(runner, bad, older, said) or continue_to_end(site, runner, unused=[bad.path])
    fired = min(1, len(read_fired(folder)))
    return Attempt(1, fired, "bad" if problem else "equal", problem or f"went on without step {bad.step}")


def _find_newest(runner: Runner) -> tuple[_Checkpoint, _Checkpoint]:
    """The newest checkpoint of a run that was killed, which it would go on from, and the one before it."""
    manifest = _manifest_of(runner)
    state = manifest.load_head().state
    assert len(state.kept) > 1, "it died too early"
    found = {_Checkpoint(kept.step, kept.path, kept.fence) for kept in state.kept}
    if state.lease is not None:
        saved = list_complete_checkpoints(manifest.store, manifest.run, state.lease.fence)
        found |= {_Checkpoint(step, path, state.lease.fence) for step, path in saved}
    newest, older, *_ = sorted(found, reverse=True)
    return newest, older


def _find_wrong(runner: Runner, bad: _Checkpoint, older: _Checkpoint, said: str) -> str | None:
    """What is wrong with how the run went on, in words."""
    state = _manifest_of(runner).load_head().state
    asides = [(aside.path, aside.verdict) for aside in state.quarantined]
    if asides != [(bad.path, "unreadable")]:
        return f"passed over is {asides}, expected {bad.path}"
    if PASSED_OVER not in " ".join(said.split()):
        return f"nobody was told: {said[-1000:]}"
    if not (Path(runner.settings["store"]) / bad.path / INDEX_NAME).is_file():
        return "its files are gone"
    later = [one for one in state.segments if one.fence > bad.fence and one.last_step > one.first_step]
    # One interval of saves: of `every_steps`, or more of them where a save took longer than that.
    if later[0].first_step != older.step:
        return f"it went on from step {later[0].first_step}, not {older.step}; step {bad.step} cannot be read"
    return None


def _manifest_of(runner: Runner) -> Manifest:
    """The manifest of a run in a folder."""
    return Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"]))
