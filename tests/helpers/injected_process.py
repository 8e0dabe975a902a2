"""A process that a plan of faults was given to: who it is, and how it dies.

Loaded into the processes of a command, before anything of theirs. Invariant: a mark is on disk before its fault takes
place, and of all processes that meet a fault so many as it says get one.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.fault_plans import (
    FOLDER_VARIABLE,
    ClockFault,
    Fault,
    FaultPlan,
    FileFault,
    FlipFault,
    HostFault,
    Role,
    StepFault,
    read_plan,
)

ROLES: dict[str, Role] = {
    "flows.cli": "command", "tests.helpers.resuming": "command", "training.agents.agent": "launcher",
    "training.agents.rank": "rank",
}  # fmt: skip
# Before anything is wrapped.
REAL_OPEN, REAL_WRITE, REAL_FSYNC = os.open, os.write, os.fsync


@dataclass(frozen=True)
class InjectedProcess:
    """This process: its part in the command, its rank if it is one, and the folder of its plan."""

    role: Role
    rank: int | None
    folder: Path

    def claim(self, index: int, times: int | None, **met: Any) -> bool:
        """Leave a mark that fault `index` takes place now; False if it has done so `times` times already."""
        mark = {"fault": index, "role": self.role, "rank": self.rank, "pid": os.getpid(), **met}
        data = json.dumps(mark | {"at_ns": time.monotonic_ns()}).encode()
        count = 0
        while times is None or count < times:
            try:
                _write_durably(self.folder / "fired" / f"{index:03d}-{count:05d}.json", data)
            except FileExistsError:
                count += 1
            else:
                return True
        return False

    def has_fired(self, index: int) -> bool:
        """Whether fault `index` took place already, in whatever process."""
        return any((self.folder / "fired").glob(f"{index:03d}-*"))

    def strike(self, death: str, last: Callable[[], object] | None = None) -> None:
        """SIGKILL for those who die: see `Death`. `last` comes before this process's own end."""
        kill_family(self.folder, death, spare=os.getpid())
        if last is not None:
            last()
        if death in ("process", "machine", "power", self.role):
            os.kill(os.getpid(), signal.SIGKILL)
        if death == "crash":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)


def kill_family(folder: Path, death: str = "machine", spare: int | None = None) -> None:
    """SIGKILL for those processes that met the plan in `folder`, but for `spare`, who die such a death."""
    for path in (folder / "family").iterdir():
        role, _, pid = path.name.partition("-")
        if int(pid) != spare and death in ("machine", "power", role):
            _kill(int(pid))


def take_up_plan(command_line: Sequence[str], environment: Mapping[str, str]) -> None:
    """Install what the plan in the environment asks for, if this is a process of the product's own."""
    role = next((ROLES[part] for part in command_line if part in ROLES), None)
    if role is None:
        return
    folder = Path(environment[FOLDER_VARIABLE])
    watched, plan = read_plan(folder)
    # A rank that was begun anew: its agent's other ranks are forked, and meet the plan below.
    process = InjectedProcess(role, int(command_line[-1]) if role == "rank" else None, folder)
    (folder / "family" / f"{role}-{os.getpid()}").touch()
    faults = list(enumerate(plan.faults))
    shorten_history()
    _install_world_faults(process, faults)
    if role == "launcher":
        _let_ranks_meet(folder)
        return
    _install(process, watched, plan)


def _let_ranks_meet(folder: Path) -> None:
    """The plan is taken up by each rank when it is forked: until then the agent has its modules as they are.

    It is read then, too: an agent that is kept may have another plan for its next order.
    """
    from tests.helpers.imported_later import after_import

    def change(rank_module: Any) -> None:
        be_a_rank = rank_module.be_a_rank

        def meet_and_be_a_rank(order: Any, local_rank: int, life: int, place: Any) -> Any:
            process = InjectedProcess("rank", order.first_rank + local_rank, folder)
            (folder / "family" / f"rank-{os.getpid()}").touch()
            _install(process, *read_plan(folder))
            be_a_rank(order, local_rank, life, place)

        rank_module.be_a_rank = meet_and_be_a_rank

    after_import("training.agents.rank", change)


def _install(process: InjectedProcess, watched: list[str], plan: FaultPlan) -> None:
    """What goes wrong with files and at steps, in this process."""
    faults = list(enumerate(plan.faults))
    file_faults = [(index, fault) for index, fault in faults if isinstance(fault, FileFault)]
    if plan.is_traced or file_faults:
        from tests.helpers.injected_files import FileOperations

        FileOperations(process, watched, file_faults, plan.is_traced).install()
    step_faults = [(index, fault) for index, fault in faults if isinstance(fault, StepFault)]
    if step_faults and process.role == "rank":
        from tests.helpers.injected_steps import install_step_faults

        install_step_faults(process, step_faults)
    flips = [(index, fault) for index, fault in faults if isinstance(fault, FlipFault)]
    if flips and process.role == "rank":
        from tests.helpers.injected_flips import install_flips

        install_flips(flips, process.rank, process.claim)


def _install_world_faults(process: InjectedProcess, faults: list[tuple[int, Fault]]) -> None:
    """What is wrong from the start on: the clock, the machine."""
    for index, fault in faults:
        if isinstance(fault, ClockFault):
            process.claim(index, None)
            _set_clock(fault.offset_seconds)
        if isinstance(fault, HostFault) and process.role == "command":
            process.claim(index, None)
            _move_to_host(fault.name)


def shorten_history() -> None:
    """Let a run of a few points and segments put parts of its history as one of days does: to be cut off there too."""
    from tests.helpers.imported_later import after_import

    after_import("training.metrics.training_state", lambda module: setattr(module, "MAX_RECENT", 3))
    after_import("storage.runs.earlier_segments", lambda module: setattr(module, "SEGMENTS_IN_PART", 1))


def _set_clock(offset_seconds: float) -> None:
    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + offset_seconds
    time.time_ns = lambda: real_time_ns() + int(offset_seconds * 1e9)


def _move_to_host(name: str) -> None:
    """Let the product's own question, in which boot and namespace it runs, get another answer."""
    from tests.helpers.imported_later import after_import

    def move(holders: Any) -> None:
        holders._pid_scope = lambda: f"{name} pid:[1]"
        holders.socket.gethostname = lambda: name

    after_import("storage.runs.holders", move)


def _write_durably(path: Path, data: bytes) -> None:
    """Put a new file, with the operating system's own calls: those of `os` may be traced."""
    descriptor = REAL_OPEN(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    REAL_WRITE(descriptor, data)
    REAL_FSYNC(descriptor)
    os.close(descriptor)


def _kill(pid: int) -> None:
    try:
        if any(
            name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in (b"python", b"holdfast")
        ):  # else the number is another's by now
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return
