"""Faults that a whole command meets, as data: what happens, and in what it must end.

Invariant: after each of them the same command without the fault comes to the weights of the undisturbed run; "clear
error" asks in addition that the disturbed command ended with one message that names the matter, and no traceback.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.faults.campaign.results import Attempt, Verdict
from tests.faults.campaign.site import STEPS, Site
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired

MIDDLE = STEPS // 2
DAY_SECONDS = 24 * 3600.0
SAVED = Moment("rank", "link", "/checkpoints/", nth=5)
SYNCED = Moment("rank", "fsync", ".tmp/", nth=5)
PROMOTED = Moment("command", "link", "promoted step", nth=2)
FULL, READ_ONLY = "No space left on device", "Read-only file system"
# What stays as it is need not be met four times; nor need the save of the best model be tried for ten minutes.
ONCE: dict[str, Any] = {"retry__attempts": 0, "retry__store_seconds": 5}
# From its first look on; a run that is left has a checkpoint to restore, and one to promote.
SECOND = partial(FaultPlan().failing_for, 1.0)
LONE = {"train__ranks": 1}  # its run must end as the undisturbed one of several ranks


@dataclass(frozen=True)
class Disturbance:
    """What a new run meets, or one that a dead machine left if `is_left` says so."""

    name: str
    plan: FaultPlan
    ends_in: Verdict = "equal"
    says: str = ""
    is_left: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


DISTURBANCES = (
    Disturbance("SIGKILL of the agent", FaultPlan().kill_at_step(MIDDLE, rank=1, death="launcher")),
    Disturbance("SIGKILL of the flow", FaultPlan().kill_at_step(MIDDLE, rank=1, death="command")),
    Disturbance("SIGKILL of all", FaultPlan().kill_at_step(MIDDLE, rank=1, death="machine")),
    Disturbance("SIGKILL of a lone rank", FaultPlan().kill_at_step(MIDDLE), settings=LONE),
    Disturbance("SIGKILL of the flow of a lone rank", FaultPlan().kill_at_step(MIDDLE, death="command"), settings=LONE),
    Disturbance("SIGKILL of all of a lone rank", FaultPlan().kill_at_step(MIDDLE, death="machine"), settings=LONE),
    Disturbance("out of memory in a step, once", FaultPlan().out_of_memory(rank=1, step=MIDDLE)),
    Disturbance("a rank hangs", FaultPlan().hang(rank=1, step=MIDDLE), settings={"segment__hang_seconds": 60}),
    Disturbance("a lone rank hangs", FaultPlan().hang(0, MIDDLE), settings={**LONE, "segment__hang_seconds": 60}),
    Disturbance("no space left, for one file of a save", FaultPlan().disk_full(SAVED, times=1)),
    Disturbance("an I/O error in one fsync of a save", FaultPlan().failing(SYNCED, "EIO")),
    Disturbance("no space left, for one commit", FaultPlan().disk_full(PROMOTED, times=1)),
    Disturbance("no space left, for every save", FaultPlan().disk_full(SAVED), "clear error", FULL, settings=ONCE),
    Disturbance("no space left, for every commit", FaultPlan().disk_full(PROMOTED), "clear error", FULL, settings=ONCE),
    Disturbance(
        "a store that is read-only from the start",
        FaultPlan().failing(Moment(operation="open"), "EROFS", None).failing(Moment(operation="link"), "EROFS", None),
        "clear error",
        READ_ONLY,
    ),
    Disturbance(
        "a store that becomes read-only in training",
        FaultPlan().failing(SAVED, "EROFS", None).failing(PROMOTED, "EROFS", None),
        "clear error",
        READ_ONLY,
        settings=ONCE,
    ),
    *(
        Disturbance(f"no checkpoint can be read for a second ({errno}): {who}", SECOND(moment, errno), is_left=True)
        for errno in ("EIO", "ENOENT")
        for who, moment in (
            ("one of two ranks", Moment("rank", "read", "/checkpoints/", rank=1)),
            ("all ranks", Moment("rank", "read", "/checkpoints/")),
            ("the command", Moment("command", "read", "/checkpoints/")),
            ("every process", Moment(operation="read", place="/checkpoints/")),
        )
    ),
    Disturbance("the clock is set back a day", FaultPlan().clock(-DAY_SECONDS), is_left=True),
    Disturbance("the clock is set forward two days", FaultPlan().clock(2 * DAY_SECONDS), is_left=True),
)


def meet(site: Site, disturbance: Disturbance) -> Attempt:
    """Let a run meet it, continue the run without it, and compare."""
    runner = site.new_run("disturbed", **disturbance.settings)
    if disturbance.is_left:
        site.leave_dead(runner)
    folder = site.new_folder("disturbed")
    with disturbance.plan.injected(runner, folder):
        ended = runner.call("run")
    fired = {int(mark["fault"]) for mark in read_fired(folder)}
    said = ended.stdout + ended.stderr
    problem = None
    if disturbance.ends_in == "clear error":
        problem = find_unclear(ended.returncode, ended.stderr, disturbance.says)
    elif "Traceback" in said:
        problem = f"a traceback: {said[-500:]}"
    problem = problem or continue_to_end(site, runner)
    return Attempt(1, min(1, len(fired)), "bad" if problem else disturbance.ends_in, problem or "")


def continue_to_end(site: Site, runner: Runner, unused: Collection[str] = ()) -> str | None:
    """Run the command once more, undisturbed; what is wrong then, or None. `unused`: see `Site.find_difference`."""
    ended = runner.call("run")
    if ended.returncode != 0:
        return f"continuing ended with {ended.returncode}: {ended.stdout[-300:]}{ended.stderr[-700:]}"
    return site.find_difference(runner, unused=unused)


def find_unclear(code: int, said: str, wanted: str = "") -> str | None:
    """What is wrong with the words of a command that failed."""
    if code not in (1, 2):
        return f"exit code {code} and not an error: {said[-500:]}"
    if "Traceback" in said or len(re.findall("^Error: ", said, re.MULTILINE)) != 1:
        return f"not one clear message: {said[-1000:]}"
    if not re.search(wanted, " ".join(said.split())):
        return f"the message does not say {wanted!r}: {said[-500:]}"
    return None
