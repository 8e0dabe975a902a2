"""The processes of a segment: torchrun and its ranks, or one rank alone, from launch to the last one's end.

Invariant: no rank outlives the block that launched it, however the block is left; and each rank is asked to leave in
good order, and given the time for it, before it is killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from training.configuration import TrainConfig
from training.stopping import SUPERVISOR_VARIABLE, follow_parent

POLL_SECONDS = 0.2
KILLED_SECONDS = 10.0
# What torchrun would say to the only rank.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
PACKAGE_ROOT = Path(__file__).parents[2]


class Ranks:
    """Works on a specification file, with as many ranks as `train` says. A context manager.

    Several ranks run under torchrun. One alone is launched without: it has nobody to meet, and torchrun would spend
    seconds on loading torch only to start it.
    """

    def __init__(self, specification: Path, log: Path, train: TrainConfig, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._stop_deadline: float | None = None
        self._command = _command(specification, train.ranks)
        self._log = log
        self._environment = _environment(train, grace_seconds)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the flow alone, which passes it on once
                preexec_fn=follow_parent,
            )
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()
        while self.is_running(POLL_SECONDS):
            pass

    def is_running(self, wait_seconds: float) -> bool:
        """Wait a moment for the ranks to end, and kill them if their time to leave is over; whether any still runs."""
        process = self._launched()
        try:
            process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
                kill_tree(process.pid)
            return True
        return False

    def stop(self) -> None:
        """Ask the ranks to save and leave, once however often it is called."""
        if self._stop_deadline is not None:
            return
        self._stop_deadline = time.monotonic() + self._grace_seconds
        if self._launched().poll() is None:
            self._launched().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for all of them, at once."""
        kill_tree(self._launched().pid)
        self._launched().wait()

    def _launched(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the ranks were not launched")
        return self._process


def _command(specification: Path, ranks: int) -> list[str]:
    worker = ["-m", "training.worker", str(specification)]
    if ranks == 1:
        return [sys.executable, "-u", *worker]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    return [sys.executable, *torchrun, *worker]


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that descend from it: ranks run in sessions of their own, no group holds them all."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # it ended by itself meanwhile


def find_orphans(specification: Path) -> list[psutil.Process]:
    """The processes that work on this specification, zombies too."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(specification) in (p.info["cmdline"] or [])]


def wait_for_orphans(specification: Path, grace_seconds: float) -> int:
    """Wait until no process works on this specification any more, and kill those that stay too long; how many were met.

    Ranks whose launcher was killed get SIGTERM from the kernel and may be saving right now: what they save counts.
    """
    orphans = find_orphans(specification)
    for process in _still_running(orphans, grace_seconds):
        kill_tree(process.pid)
    # One that the kernel holds, in a driver or a file system, ends when it comes back, and does nothing before that.
    _still_running(orphans, KILLED_SECONDS)
    return len(orphans)


def _still_running(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so many seconds; as soon as none does, none.

    A zombie has ended. Whether it ever vanishes is its parent's business: the first process of a container often
    never asks for it.
    """
    deadline = time.monotonic() + seconds
    while (running := [process for process in processes if _is_running(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # they are no children of this process; psutil.wait_procs would wait for zombies too
    return running


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def environment_of_installation() -> dict[str, str]:
    """As this process's, but a child imports this installation, not folders of the user's that have our names."""
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}


def _environment(train: TrainConfig, grace_seconds: float) -> Mapping[str, str]:
    """What the numerical libraries read at load time. The number of threads decides the last bits of a sum."""
    threads = str(train.threads)
    return {
        **environment_of_installation(),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take a busy machine from those they wait for
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",  # or MKL takes fewer threads on a busy machine, and the bits change
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # what cuBLAS needs to be deterministic
        "TORCHINDUCTOR_DETERMINISTIC": "1",  # or the compiler times alternatives and takes what was quicker that day
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{grace_seconds:.0f}",
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        SUPERVISOR_VARIABLE: str(os.getpid()),
        **(ALONE if train.ranks == 1 else {}),
    }
