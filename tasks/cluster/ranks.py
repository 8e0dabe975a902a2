"""The processes of a segment on one machine: torchrun and its ranks, or one rank alone, until the last one has ended.

Invariant: no rank outlives the block that launched it, however the block is left; and each rank is asked to leave in
good order, and given the time for it, before it is killed.
"""

import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from storage.logs import LOG_NAME
from storage.objects.private_folder import PRIVATE_MODE
from tasks.cluster.processes import (
    KILLED_SECONDS,
    POLL_SECONDS,
    WORKER,
    environment_of_installation,
    find_orphans,
    kill_tree,
)
from tasks.cluster.reports import ReportFollower
from training.configuration import TrainConfig
from training.determinism import numerics_environment
from training.metrics.rank_lines import prefix_of
from training.metrics.reporter import Report
from training.rank_status import RankStatus, read_rank_statuses
from training.spec import SegmentSpec
from training.stopping import GRACE_VARIABLE, SUPERVISOR_VARIABLE, follow_parent
from training.world import RENDEZVOUS_VARIABLE

SPECIFICATION_NAME = "segment.json"
# What torchrun would set for a single rank.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
# What allocators do with the pages of what is freed: each new one takes the kernel a microsecond or more. Arrow's keeps
# them for longer than from one row group of a bucket, or one block of microbatches, to the next; glibc's for good, or
# each step of a large model would begin with as many new pages as its gradients have. What a user has set stands.
ALLOCATOR = {
    "MIMALLOC_PURGE_DELAY": "10000",  # ms
    "MALLOC_MMAP_THRESHOLD_": str(2**32),  # bytes
    "MALLOC_TRIM_THRESHOLD_": str(2**34),  # bytes
}
LOOPBACK = "lo"
TORCHRUN = "torch.distributed.run"
STACKS_SECONDS = 2.0
RENDEZVOUS_FOLDER = "rendezvous"
# Torchrun would open a port for its ranks to meet at, whether or not they do.
NO_PORT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
HELD = (
    "Ranks that were killed do not end: the kernel holds them, in a file system or a driver that does not answer (a "
    "file server that is away, a GPU that was lost). Nobody waits for them any longer. Look at `dmesg` on this machine."
)

_logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Rendezvous:
    """Where torchrun on this machine meets that of the other nodes, and over which interface their ranks talk."""

    name: str
    num_nodes: int
    endpoint: str
    is_host: bool
    join_seconds: float
    own_address: str
    interface: str


class Ranks:
    """A `Job` on this machine: it works on a specification, with as many ranks as its `train` sets.

    Several ranks run under torchrun. One alone is launched without: it needs no rendezvous, and torchrun would spend
    seconds on loading torch only to start it. With a `rendezvous` they are the ranks of one node among several.
    """

    def __init__(self, spec: SegmentSpec, grace_seconds: float, rendezvous: Rendezvous | None = None) -> None:
        self._spec = spec
        self._grace_seconds = grace_seconds
        self._stop_deadline: float | None = None
        specification = spec.scratch_folder / SPECIFICATION_NAME
        is_alone = spec.train.ranks == 1 and rendezvous is None
        # Where torchrun and its ranks meet on one machine: files, since on a port, which would be open on all
        # interfaces, torchrun unpickles whatever is put there.
        self._rendezvous_folder = spec.scratch_folder / f"{RENDEZVOUS_FOLDER}-{uuid.uuid4().hex}"
        how = _how_on_one_machine(self._rendezvous_folder) if rendezvous is None else _how_among_nodes(rendezvous)
        self._command = [sys.executable, *_arguments(spec.train.ranks, is_alone, how), str(specification)]
        self._environment = _environment(spec.train, grace_seconds, is_alone, rendezvous)
        if rendezvous is None and not is_alone:
            self._environment |= NO_PORT | {RENDEZVOUS_VARIABLE: str(self._rendezvous_folder / "ranks")}
        self._reports = ReportFollower(spec.progress_file)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        folder = self._spec.scratch_folder
        folder.mkdir(parents=True, exist_ok=True)
        self._rendezvous_folder.mkdir(mode=PRIVATE_MODE)
        (folder / SPECIFICATION_NAME).write_text(self._spec.model_dump_json(), encoding="utf-8")
        with (folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the flow alone, which passes it on once
                preexec_fn=partial(follow_parent, os.getpid()),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        while self.is_running(POLL_SECONDS):
            if self._is_held():
                _logger.warning(HELD)
                return

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

    def read_reports(self) -> list[Report]:
        return self._reports.read()

    def read_rank_statuses(self) -> list[RankStatus]:
        return read_rank_statuses(self._spec.scratch_folder)

    def describe_wait(self) -> str | None:
        return None

    def describe_growth(self) -> str | None:
        return None

    def stop(self) -> None:
        """Ask the ranks to save and leave, once however often it is called."""
        if self._stop_deadline is not None:
            return
        self._stop_deadline = time.monotonic() + self._grace_seconds
        if self._launched().poll() is None:
            self._launched().send_signal(signal.SIGTERM)

    def write_stacks(self) -> None:
        """By SIGQUIT. A rank that does not answer does not run: it was stopped, or the kernel holds it."""
        folder = self._spec.scratch_folder
        for process in find_orphans(folder / SPECIFICATION_NAME):
            with suppress(psutil.NoSuchProcess):
                if TORCHRUN not in process.cmdline():  # which would end the ranks
                    process.send_signal(signal.SIGQUIT)
        time.sleep(STACKS_SECONDS)  # they do not signal that they are done
        with (folder / LOG_NAME).open("a") as log:
            for path in sorted(folder.glob("stacks-*.txt")):
                stacks = path.read_text(errors="replace") or f"nothing was written within {STACKS_SECONDS:.0f} s\n"
                rank = int(path.stem.rpartition("-")[2])
                log.writelines(
                    f"{prefix_of(rank)}{line}\n" for line in (f"stacks of rank {rank}:", *stacks.splitlines())
                )

    def kill(self) -> None:
        """SIGKILL for all of them, at once."""
        kill_tree(self._launched().pid)
        try:
            self._launched().wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            _logger.warning(HELD)

    def leave(self) -> None:
        """Nothing: no other process can watch them."""

    def describe_end(self) -> str | None:
        return None

    def read_log(self) -> str:
        return (self._spec.scratch_folder / LOG_NAME).read_text(errors="replace")

    def _is_held(self) -> bool:
        """Whether they were killed and do not end: the kernel has them, in a driver or a file system."""
        return self._stop_deadline is not None and time.monotonic() > self._stop_deadline + KILLED_SECONDS

    def _launched(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the ranks were not launched")
        return self._process


def _arguments(ranks: int, is_alone: bool, how: list[str]) -> list[str]:
    """Python's, in front of the specification's path; `how` torchrun and its ranks meet."""
    worker = ["-m", WORKER]
    if is_alone:
        return ["-u", *worker]
    return ["-m", TORCHRUN, *how, f"--nproc-per-node={ranks}", *worker]


def _how_on_one_machine(folder: Path) -> list[str]:
    return [
        "--nnodes=1",
        "--rdzv-backend=c10d",
        "--rdzv-id=this-machine",
        f"--rdzv-endpoint={folder / 'torchrun'}",
        "--rdzv-conf=store_type=file",
        "--local-addr=127.0.0.1",
    ]


def _how_among_nodes(rendezvous: Rendezvous) -> list[str]:
    conf = f"is_host={int(rendezvous.is_host)},join_timeout={rendezvous.join_seconds:.0f},last_call_timeout=1"
    return [
        f"--nnodes={rendezvous.num_nodes}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={rendezvous.name}",
        f"--rdzv-endpoint={rendezvous.endpoint}",
        f"--rdzv-conf={conf}",
        f"--local-addr={rendezvous.own_address}",
    ]


def _environment(
    train: TrainConfig, grace_seconds: float, is_alone: bool, rendezvous: Rendezvous | None
) -> dict[str, str]:
    """What ranks and their libraries read when they start."""
    interface = LOOPBACK if rendezvous is None else rendezvous.interface
    return {
        **ALLOCATOR,
        **numerics_environment(environment_of_installation(), train.threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take a busy machine from those they wait for
        "GLOO_SOCKET_IFNAME": interface,
        **({} if rendezvous is None else {"NCCL_SOCKET_IFNAME": f"={interface}"}),  # with = it is no prefix
        GRACE_VARIABLE: f"{grace_seconds:.0f}",
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        SUPERVISOR_VARIABLE: str(os.getpid()),
        **(ALONE if is_alone else {}),
    }
