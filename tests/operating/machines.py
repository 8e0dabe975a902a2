"""Machines with a worker each: namespaces with a name, processes, a scratch disk and shared memory of their own.

They share this machine's network, so that all reach the servers on loopback. Invariant: who looks from one of them sees
no process of another, and nothing of any outlives the block.
"""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.helpers.commands import wait_until
from tests.helpers.operators import PREFECT
from training.stopping import PR_SET_PDEATHSIG, follow_parent

_LIBC = ctypes.CDLL(None, use_errno=True)

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc", "--mount")
# The first process of a machine has no other work than to take over what others have left.
FIRST = """
echo "$0" > /proc/sys/kernel/hostname
mount --bind "$1" "$2" && mount -t tmpfs tmpfs /dev/shm || exit 1
echo ready
while :; do sleep 0.5; wait; done
"""


def find_reason_to_skip() -> str | None:
    """Why there can be no such machines here, in one sentence; None if there can."""
    if os.geteuid() != 0 or shutil.which("nsenter") is None:
        return "machines are namespaces, which take root, and util-linux"
    tried = subprocess.run([*APART, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
    return f"this system refuses namespaces to root: {tried.stderr.strip()}" if tried.returncode else None


@dataclass
class Machine:
    """One that can be killed, and started again with what is on its disk; `scratch` is where it sees that disk."""

    name: str
    disk: Path
    scratch: Path
    log: Path
    _first: "subprocess.Popen[bytes] | None" = field(default=None)
    _workers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def boot(self) -> None:
        self.disk.mkdir(parents=True, exist_ok=True)
        command = [*APART, "sh", "-c", FIRST, self.name, str(self.disk), str(self.scratch)]
        self._first = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=_die_with_parent
        )
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == b"ready\n", f"the machine {self.name} did not start"

    def start_worker(self, environment: Mapping[str, str], pool: str, folder: Path) -> None:
        """A worker of the pool, in `folder`, without a limit of flow runs."""
        worker = [*PREFECT, "worker", "start", "--pool", pool, "--name", self.name]
        inside = ["nsenter", "--target", str(self._pid), "--pid", "--uts", "--ipc", "--mount", f"--wd={folder}"]
        with self.log.open("ab") as output:
            started = subprocess.Popen(
                [*inside, *worker], env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=follow_parent,
            )  # fmt: skip
        self._workers.append(started)

    def run(self, *command: str) -> None:
        """A command on it, to its end, which must be a good one."""
        inside = ["nsenter", "--target", str(self._pid), "--pid", "--uts", "--ipc", "--mount"]
        subprocess.run([*inside, *command], check=True, capture_output=True)

    def find_worker(self) -> psutil.Process:
        (found,) = [one for one in self.processes() if _is_worker(one)]
        return found

    def processes(self) -> list[psutil.Process]:
        """All that runs on it, but for its first process."""
        try:
            own = Path(f"/proc/{self._pid}/ns/pid").readlink()
        except OSError:
            return []
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if process.pid != self._pid and Path(f"/proc/{process.pid}/ns/pid").readlink() == own:
                    found.append(process)
        return found

    def send(self, number: signal.Signals) -> None:
        """A signal to all that runs on it."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(number)

    def kill(self) -> None:
        """Without a word, as where the power fails."""
        if self._first is None:
            return
        self._first.kill()
        self._first.wait()
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._first, self._workers = None, []

    @property
    def _pid(self) -> int:
        assert self._first is not None, f"the machine {self.name} does not run"
        return psutil.Process(self._first.pid).children()[0].pid


def _die_with_parent() -> None:
    """By SIGKILL: `unshare` waits for its child whatever else it is sent."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        line = process.cmdline()
        return process.ppid() > 0 and "worker" in line and "nsenter" not in line[0]
    return False


@contextmanager
def running_machines(names: tuple[str, ...], folder: Path) -> Iterator[dict[str, Machine]]:
    """Machines of these names; their scratch is seen by each at `folder`/scratch."""
    (scratch := folder / "scratch").mkdir(parents=True)
    machines = {name: Machine(name, folder / "disks" / name, scratch, folder / f"{name}.log") for name in names}
    try:
        for machine in machines.values():
            machine.boot()
        yield machines
    finally:
        for machine in machines.values():
            machine.kill()


def wait_for_worker(machine: Machine) -> None:
    """Until it has started."""
    wait_until(lambda: any(_is_worker(one) for one in machine.processes()))
