"""Faults as data: what goes wrong, in which process, at which moment.

A plan is a value. `injected` hands it to the commands of a `Runner` through their environment, where
`tests/faults/injected/sitecustomize.py` takes it up; the product's code is not touched. Invariant: a fault leaves its
mark on disk before it takes place, so that a test can show that it did, and takes place no more often than it says,
however many processes meet it. Only the standard library is imported: this file is loaded into every process.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

ROOT = Path(__file__).parents[2]
INJECTED = ROOT / "tests" / "faults" / "injected"
# The folder of a plan: its faults, their marks and the trace. The processes of a command find it under this name.
FOLDER_VARIABLE = "HOLDFAST_TEST_FAULTS"

# Longer than many steps of a small model, so that a save which waits for it is under way at their boundaries.
LATE_SECONDS = 0.2

Role = Literal["command", "launcher", "rank"]
Memory = Literal["weights", "moments", "sum", "sent"]
Operation = Literal["read", "open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir"]
# Who gets SIGKILL. process: the one that meets the fault. launcher, command: the agent, the flow. machine: the command
# and all its processes at once. power: the same, and what the process that meets it had not synced to disk is lost.
Death = Literal["process", "launcher", "command", "machine", "power"]


@dataclass(frozen=True)
class Moment:
    """The `nth` time that a process of this role does this to a file whose place contains `place`.

    A place is a path below the watched folders with runs, steps, fences and random names left out, and with what
    happened where it is a generation of the manifest: see `injected_files.py`. None is any. `exact` asks for the whole
    place and not for a part of it. `thread` is its name: what threads do beside each other is counted apart. `caller`
    is for what it is done, `settle_segment > commit > _put` for instance.
    """

    role: Role | None = None
    operation: Operation | None = None
    place: str = ""
    nth: int = 1
    rank: int | None = None
    thread: str | None = None
    caller: str | None = None
    exact: bool = False
    path: str = ""


@dataclass(frozen=True)
class FileFault:
    """At the moment: a death, or the operation fails with this errno (a name: ENOSPC), `times` times from then on.

    With `seconds` it fails in each process for so long from the first time on that this process meets it.
    late: it takes place `LATE_SECONDS` later, while other threads go on.
    """

    moment: Moment
    effect: str
    times: int | None = 1
    seconds: float | None = None
    kind: Literal["file"] = "file"


@dataclass(frozen=True)
class StepFault:
    """On a rank (None: each) before it takes this step (None: any) with this row of the training split (None: any).

    Or within the step: when the first part of its sum was `sent`, or all ranks' sum is there (`summed`), before the
    weights are changed; or before it begins to `validate` at this step. There only deaths, and lose_peer: it meets what
    a rank does whose connection is gone. Or while it is `computing` the microbatch that has this row: there only deaths
    and a crash, which is SIGSEGV, as of a library that reads what is not its own.
    A death: see `Death`. note: its mark alone, which has the time. stop: the rank stands still. slow: it stands still
    for a moment, at this step and at each one after it. out_of_memory: the step raises what torch raises.
    take_memory: the process takes memory until the kernel kills it. error: it raises what nobody expects. exit: the
    process leaves with code 3 and says nothing.
    nan, spike: the row's numeric columns become NaN, or so large that the loss leaps.
    """

    effect: (
        Death
        | Literal["note", "stop", "slow", "out_of_memory", "take_memory", "error", "exit", "nan", "spike", "lose_peer"]
        | Literal["crash"]
    )
    rank: int | None = None
    step: int | None = None
    row: int | None = None
    times: int | None = 1
    point: Literal["begin", "sent", "summed", "validate", "computing"] = "begin"
    kind: Literal["step"] = "step"


@dataclass(frozen=True)
class FlipFault:
    """One bit changes in the memory of a rank at this step, counted from 0.

    weights, moments: of the model or of the optimizer, when the step is done. sum: of the gradients' sum over ranks,
    when this rank has received it. sent: of its own part of that, when it is about to be sent. `bit` counts through all
    of it, and begins again at its end.
    """

    of: Memory
    rank: int
    step: int
    bit: int
    times: int | None = 1
    kind: Literal["flip"] = "flip"


@dataclass(frozen=True)
class ClockFault:
    """Python's clock is off by so many seconds in every process of the command."""

    offset_seconds: float
    times: int | None = None
    kind: Literal["clock"] = "clock"


@dataclass(frozen=True)
class HostFault:
    """Every process of the command believes itself on another machine: it cannot see the holder of a lease."""

    name: str
    times: int | None = None
    kind: Literal["host"] = "host"


Fault = FileFault | StepFault | FlipFault | ClockFault | HostFault
KINDS: dict[str, type[Fault]] = {
    "file": FileFault, "step": StepFault, "flip": FlipFault, "clock": ClockFault, "host": HostFault,
}  # fmt: skip


class HasEnvironment(Protocol):
    """Whatever starts commands with an environment that can be changed: `Runner`."""

    environment: Mapping[str, str]
    settings: dict[str, Any]


@dataclass(frozen=True)
class FaultPlan:
    """Faults, and whether every operation on a file is to be traced. Each method gives a plan with one fault more."""

    faults: tuple[Fault, ...] = ()
    is_traced: bool = False

    def kill(self, moment: Moment, death: Death = "process") -> "FaultPlan":
        """SIGKILL just before the operation takes place; of a write, after half of its bytes."""
        return self.having(FileFault(moment, death))

    def kill_at_step(self, step: int, rank: int | None = None, death: Death = "process") -> "FaultPlan":
        """SIGKILL before the rank takes this step."""
        return self.having(StepFault(death, rank, step))

    def failing(self, moment: Moment, errno: str, times: int | None = 1) -> "FaultPlan":
        """The operation fails with this errno; None is for as long as the plan is injected."""
        return self.having(FileFault(moment, errno, times))

    def failing_for(self, seconds: float, moment: Moment, errno: str) -> "FaultPlan":
        """The operation fails with this errno in each process, for so long from its first try on."""
        return self.having(FileFault(moment, errno, None, seconds))

    def disk_full(self, moment: Moment, times: int | None = None) -> "FaultPlan":
        """No space is left from this moment on."""
        return self.failing(moment, "ENOSPC", times)

    def late(self, moment: Moment) -> "FaultPlan":
        """The operation takes place a moment later, and so each time: a store that takes its time."""
        return self.having(FileFault(moment, "late", None))

    def stop(self, moment: Moment) -> "FaultPlan":
        """The process stands still just before the operation, until somebody sends SIGCONT."""
        return self.having(FileFault(moment, "stop"))

    def hang(self, rank: int, step: int) -> "FaultPlan":
        """The rank stands still before it takes this step."""
        return self.having(StepFault("stop", rank, step))

    def slow(self, rank: int) -> "FaultPlan":
        """The rank's machine is slow from the first step on."""
        return self.having(StepFault("slow", rank))

    def out_of_memory(self, rank: int, step: int) -> "FaultPlan":
        """The step ends as it does when an allocation fails."""
        return self.having(StepFault("out_of_memory", rank, step))

    def nan(self, row: int) -> "FaultPlan":
        """This row of the training split is poison, each time a rank meets it: the loss is not a number."""
        return self.having(StepFault("nan", row=row, times=None))

    def spike(self, row: int) -> "FaultPlan":
        """This row of the training split makes the loss leap, each time a rank meets it."""
        return self.having(StepFault("spike", row=row, times=None))

    def flip(self, of: Memory, rank: int, step: int, bit: int) -> "FaultPlan":
        """A bit changes in the memory of a rank."""
        return self.having(FlipFault(of, rank, step, bit))

    def clock(self, offset_seconds: float) -> "FaultPlan":
        """The clock is set forward, or back where it is negative."""
        return self.having(ClockFault(offset_seconds))

    def on_another_host(self, name: str = "another-host") -> "FaultPlan":
        """The command runs where it cannot see the processes of others."""
        return self.having(HostFault(name))

    def traced(self) -> "FaultPlan":
        """Write down every operation on a watched file."""
        return replace(self, is_traced=True)

    def having(self, fault: Fault) -> "FaultPlan":
        return replace(self, faults=(*self.faults, fault))

    @contextmanager
    def injected(self, runner: HasEnvironment, folder: Path) -> Iterator[Path]:
        """All commands that the runner starts within the block meet the plan; yields `folder`, for `read_fired`."""
        before = runner.environment
        watched = [runner.settings["store"], *filter(None, [runner.settings.get("scratch")])]
        runner.environment = {**before, **self.environment(folder, [Path(place) for place in watched])}
        try:
            yield folder
        finally:
            runner.environment = before

    def environment(self, folder: Path, watched: list[Path]) -> dict[str, str]:
        """Write the plan into `folder`, and say how processes find it. Operations below `watched` are looked at."""
        for name in ("fired", "trace", "family"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        plan = {
            "watched": [str(place.absolute()) for place in watched],
            "is_traced": self.is_traced,
            "faults": [asdict(fault) for fault in self.faults],
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        path = [str(INJECTED), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {FOLDER_VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(path)}

    def fired(self, folder: Path) -> list[dict[str, Any]]:
        """What took place so far, in order: see `read_fired`."""
        return read_fired(folder)


def read_plan(folder: Path) -> tuple[list[str], FaultPlan]:
    """The watched folders and the plan that were written into `folder`."""
    values = json.loads((folder / "plan.json").read_text())
    return values["watched"], FaultPlan(tuple(_read_fault(fault) for fault in values["faults"]), values["is_traced"])


def read_fired(folder: Path) -> list[dict[str, Any]]:
    """Marks of the faults that took place: index of the fault in its plan, role, rank, pid, and where it was met."""
    texts = (path.read_text() for path in (folder / "fired").glob("*.json"))
    marks = (json.loads(text) for text in texts if text.endswith("}"))  # one may be in writing right now
    return sorted(marks, key=lambda mark: int(mark["at_ns"]))


def read_trace(folder: Path) -> list[dict[str, Any]]:
    """Every operation on a watched file, in order: role, rank, pid, thread, operation, place."""
    lines = [line for path in (folder / "trace").glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda entry: int(entry["at_ns"]))


def _read_fault(values: dict[str, Any]) -> Fault:
    if "moment" in values:
        values = values | {"moment": Moment(**values["moment"])}
    return KINDS[values["kind"]](**values)
