"""Machines, and the workers on them: killed, stopped, with a full disk, another clock, or other packages."""

import shutil
import signal
import subprocess
import sys
import time

from storage.runs.code_version import PACKAGES
from tests.helpers.commands import ROOT
from tests.helpers.fault_plans import INJECTED, ClockFault, FaultPlan, StepFault
from tests.operating.by_people import COMPLETED, DONE, PREEMPTED
from tests.operating.by_processes import DEAD
from tests.operating.rows import Operated, Row, Trial
from tests.operating.runs import STEPS, wait_for_all

STOPPED_SECONDS = 120.0
LOST = {"lost"}
SEGMENT_LOST = "holdfast.segment-lost"
CLOCK_SECONDS = 600.0
FULL_SECONDS = 60.0
OTHER_NUMPY = "2.4.5"  # any that is not installed, and computes the same


def killed_machine(operated: Operated) -> list[Row]:
    """With all runs on it; those of the other machine are not concerned."""
    place = operated.place
    runs = [operated.new_run(f"killed-machine-{number}") for number in range(2)]
    for run in runs:
        run.begin()
    wait_for_all(runs)
    struck = runs[0].machine()
    trials = []
    for run in runs:
        is_struck = run.machine() == struck
        what = "kill -9 of a machine: worker and all it started" if is_struck else "the same, of the other machine"
        trials.append((run, is_struck, Trial(operated, run, what, "the other takes over" if is_struck else "nothing")))
    for _, _, trial in trials:
        trial.strike(lambda: None)
    place.machines[struck].kill()
    for _, is_struck, trial in trials:
        if is_struck:
            trial.require_states({"Crashed"}, {"Crashed"})
    rows = [
        trial.end([LOST, COMPLETED], [*DEAD, SEGMENT_LOST], most_lost=STEPS) if is_struck else trial.end([COMPLETED])
        for _, is_struck, trial in trials
    ]
    place.machines[struck].boot()
    place.start_worker(struck)
    return rows


def stopped_worker(operated: Operated) -> Row:
    """The worker's own process; what it started goes on."""
    place = operated.place
    run = operated.training("stopped-worker")
    worker = place.machines[run.machine()].find_worker()
    trial = Trial(operated, run, f"SIGSTOP of the worker's process, {STOPPED_SECONDS:.0f} s", "nothing")
    trial.strike(worker.suspend)
    time.sleep(STOPPED_SECONDS)  # that time is what is tried
    worker.resume()
    trial.require_states(DONE, DONE, within=600.0)
    return trial.end([COMPLETED])


def stopped_machine(operated: Operated) -> Row:
    place = operated.place
    run = operated.training("stopped-machine")
    machine = place.machines[run.machine()]
    what = f"SIGSTOP of worker, flow run and ranks, {STOPPED_SECONDS:.0f} s"
    trial = Trial(operated, run, what, "the other machine takes over, the first one promotes nothing")
    trial.strike(lambda: machine.send(signal.SIGSTOP))
    time.sleep(STOPPED_SECONDS)  # that time is what is tried
    machine.send(signal.SIGCONT)
    ended = {"Crashed", "Skipped"}  # by the reconciler; or by the process itself, which finds that it was too late
    trial.require_states(ended, ended, within=STOPPED_SECONDS + 120.0)
    # Lost, if it was taken from it; preempted, if it woke up before and gave the run back.
    return trial.end([{"lost", "preempted"}, COMPLETED], DEAD, may=[SEGMENT_LOST], most_lost=STEPS)


def full_scratch(operated: Operated) -> Row:
    """Filled by something else while it trains, and emptied a minute later."""
    place = operated.place
    run = operated.new_run("full-scratch")
    small = place.folder / "small"
    small.mkdir()
    for machine in place.machines.values():
        machine.run("mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(small))
    run.assignments["scratch"] = str(small)
    run.begin()
    run.wait_until_training()
    machine = place.machines[run.machine()]
    filler = f"dd if=/dev/zero of={small}/filler bs=1M count=100 || true"
    expected = "told; each segment that ends by it says so; goes on when there is space"
    trial = Trial(operated, run, f"scratch is full, {FULL_SECONDS:.0f} s", expected)
    trial.strike(lambda: machine.run("sh", "-c", filler))
    time.sleep(FULL_SECONDS)  # that time is what is tried
    machine.run("rm", f"{small}/filler")
    run.wait(run.is_complete, "it is complete")
    *ended, _ = run.state.segments
    for segment in ended:
        trial.row.require("No space left" in segment.cause, f"a segment ended by: {segment.cause}")
    # Each segment reports the disk; on a quick machine the flow run has made all its attempts before there is space.
    may = ["holdfast.save-failed", "holdfast.run-ended", *["holdfast.low-disk", SEGMENT_LOST] * len(ended)]
    return trial.end([*[{"failed"}] * len(ended), COMPLETED], ["holdfast.low-disk"], may=may, most_lost=STEPS)


def wrong_clock(operated: Operated) -> Row:
    """Of one machine, ten minutes ahead; its worker and all that it started are killed in training."""
    place = operated.place
    ahead, other = place.machines["alpha"], place.machines["beta"]
    plan = FaultPlan((StepFault("slow"), ClockFault(CLOCK_SECONDS)))
    ahead.kill()
    ahead.boot()
    other.find_worker().suspend()
    place.start_worker("alpha", **plan.environment(place.folder / "ahead", []))
    run = operated.training("wrong-clock")
    what = "a clock 10 minutes ahead on one machine, then kill -9 of all on it"
    trial = Trial(operated, run, what, "the other machine takes over; no figure is absurd")
    other.find_worker().resume()
    trial.strike(ahead.kill)
    trial.require_states({"Crashed"}, {"Crashed"})
    row = trial.end([LOST, COMPLETED], [*DEAD, SEGMENT_LOST], most_lost=STEPS)
    shown = place.type("status", run.address).stdout
    goodput = shown.partition("goodput")[2][:60]
    row.require("d " not in goodput, f"goodput is shown as {goodput}")
    ahead.boot()
    place.start_worker("alpha")
    return row


def other_packages(operated: Operated) -> Row:
    """Workers that have another Holdfast and another numpy go on with a run."""
    place = operated.place
    other = place.folder / "other-packages"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "holdfast/__init__.py").open("a").write("\n# Another version.\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(other)]
    subprocess.run([*install, f"numpy=={OTHER_NUMPY}"], check=True)
    run = operated.training("other-packages")
    trial = Trial(operated, run, "another Holdfast and another numpy between two segments", "both said, and recorded")
    trial.strike(lambda: place.type("stop", run.address))
    trial.require_states({"Cancelled"}, {"Cancelled"})
    _start_workers_again(operated, PYTHONPATH=f"{INJECTED}:{other}:{ROOT}")
    run.submit()
    row = trial.end([PREEMPTED, COMPLETED])
    shown = place.type("status", run.address).stdout
    for said in ("Holdfast was", f"and {OTHER_NUMPY} from there on"):
        row.require(said in shown, f"`holdfast status` does not say “{said}”: {shown}")
    _start_workers_again(operated)
    return row


def _start_workers_again(operated: Operated, **environment: str) -> None:
    for name, machine in operated.place.machines.items():
        machine.kill()
        machine.boot()
        operated.place.start_worker(name, **environment)
