"""Two commands for one run, and processes that stand still.

Invariant: of two commands at most one trains, and whatever the other does meanwhile, the run ends as if it had not.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.campaign.disturbances import continue_to_end
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import DEATH_STEP, STEPS, Site, start_logged
from tests.helpers.commands import Runner, kill_everything, wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired

REFUSALS = (
    "is being trained by",
    "is being evaluated by",  # the rival may come late
    "was just taken over by",
    "The lease of run",
)
# When it looks whether it still holds the lease, promotes a checkpoint, or takes the run up again after its ranks.
TOLD_IT_IS_OVER = ("took the run over", "has ended", "is being trained by", "is being evaluated by")
LEAVING_SECONDS = 90.0


def two_at_once(site: Site) -> Attempt:
    """Start two commands for a new run at the same moment."""
    return _race(site, site.new_run("raced"))


def two_take_up_one(site: Site) -> Attempt:
    """Start two commands at the same moment for a run that a dead machine left."""
    runner = site.new_run("raced")
    site.leave_dead(runner)
    return _race(site, runner)


def _race(site: Site, runner: Runner) -> Attempt:
    rival = Runner(runner.configuration, dict(runner.settings), runner.environment)
    logs = [site.folder / f"{runner.settings['run']}-{name}.log" for name in ("first", "second")]
    started = [start_logged(one, log) for one, log in zip((runner, rival), logs, strict=True)]
    codes = sorted(process.wait(240) for process in started)
    said = "".join(log.read_text() for log in logs)
    was_refused = codes == [0, 2] and any(words in said for words in REFUSALS) and "Traceback" not in said
    # Whoever comes when the other has finished finds nothing to do, which is as good an end.
    problem = None if was_refused or codes == [0, 0] else f"exit codes {codes}: {said[-800:]}"
    problem = problem or continue_to_end(site, runner)
    return Attempt(1, 1, "bad" if problem else "equal", problem or f"exit codes {codes}")


def a_zombie_comes_back(site: Site) -> Attempt:
    """A machine is cut off, another one takes its run up, and then the first one comes back and goes on writing.

    The other machine is one by name: it cannot see the first one's processes, and works in a folder of its own.
    """
    zombie = site.new_run("zombie")
    here, there = site.new_folder("here"), site.new_folder("there")
    with FaultPlan().hang(rank=0, step=DEATH_STEP).injected(zombie, here):
        first = start_logged(zombie, site.folder / "zombie.log")
        was_met = wait_until(lambda: _stands_still(here), first)
    _send_all(here, signal.SIGSTOP)
    scratch = site.new_folder("scratch")
    heir = Runner(zombie.configuration, {**zombie.settings, "scratch": scratch}, zombie.environment)
    plan = FaultPlan().on_another_host().hang(rank=0, step=STEPS // 2)
    try:
        with plan.injected(heir, there):
            second = start_logged(heir, site.folder / "heir.log")
            was_met &= wait_until(lambda: _stands_still(there, fault=1), second)
        _send_all(here, signal.SIGCONT)  # both are at work now, and the first one does not know that it is over
        first_code = first.wait(240)
        _send_all(there, signal.SIGCONT)
        second_code = second.wait(240)
    finally:
        kill_everything(first)
        kill_everything(second)
    said = (site.folder / "zombie.log").read_text()
    is_told = first_code == 2 and any(words in said for words in TOLD_IT_IS_OVER) and "Traceback" not in said
    problem = None if is_told and second_code == 0 else f"exit codes {first_code}, {second_code}: {said[-800:]}"
    problem = problem or continue_to_end(site, zombie)
    return Attempt(
        1, int(was_met), "bad" if problem else "equal", problem or "the zombie is told that its lease is over"
    )


def a_rank_stands_still_and_is_asked_to_stop(site: Site) -> Attempt:
    """A rank hangs; whoever asks the command to stop is not kept waiting for ever, and the run goes on."""
    runner = site.new_run("hung", segment__grace_seconds=5)
    folder = site.new_folder("hung")
    with FaultPlan().hang(rank=1, step=DEATH_STEP).injected(runner, folder):
        process = start_logged(runner, site.folder / "hung.log")
        was_met = wait_until(lambda: bool(read_fired(folder)), process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(LEAVING_SECONDS)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        kill_everything(process)
    took = f"left after {time.monotonic() - began:.0f} s"
    problem = None if code == 128 + signal.SIGTERM else f"exit code {code}, {took}"
    problem = problem or continue_to_end(site, runner)
    return Attempt(1, int(was_met), "bad" if problem else "equal", problem or took)


RIVALRIES: dict[str, Callable[[Site], Attempt]] = {
    "two commands begin one run": two_at_once,
    "two commands take up one run": two_take_up_one,
    "a zombie comes back after its lease was taken": a_zombie_comes_back,
    "a rank hangs, and the command is asked to stop": a_rank_stands_still_and_is_asked_to_stop,
}


def _stands_still(folder: Path, fault: int = 0) -> bool:
    """Whether a rank has met this fault of the plan in `folder`, and has stopped since: its mark comes before."""
    marks = [mark for mark in read_fired(folder) if mark["fault"] == fault]
    return any(psutil.Process(mark["pid"]).status() == psutil.STATUS_STOPPED for mark in marks)


def _send_all(folder: Path, number: signal.Signals) -> None:
    """Send a signal to every process that met the plan in `folder`, the command first."""
    for path in sorted((folder / "family").iterdir()):
        try:
            os.kill(int(path.name.partition("-")[2]), number)
        except ProcessLookupError:
            continue
