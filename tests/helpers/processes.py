"""Ranks as processes of their own without an agent: forked from a server that has loaded torch, so they begin at once.

Everything else about them is real: Gloo over loopback, the entry that writes the outcome, SIGKILL, the process that
assembles ahead.
"""

import os
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from tests.helpers.fork_server import CONTEXT
from training.batches.ahead import AssemblingAhead
from training.evaluation import evaluate
from training.meeting import Meeting
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, follow_parent
from training.world import World

LONGEST_SECONDS = 600
SECONDS_TO_FOLLOW = 10


class RankProcesses:
    """The ranks of a segment; `target` is what each of them calls with the specification and its world."""

    def __init__(self, spec: SegmentSpec, target: Callable[[SegmentSpec, World], Any] | None = None) -> None:
        size = spec.train.ranks
        meeting = Meeting(file=spec.scratch_folder / f"meeting-{uuid.uuid4().hex}")
        worlds = [World(rank, size, rank, size, meeting=meeting) for rank in range(size)]
        arguments = [(spec.model_dump_json(), world, target or train_segment) for world in worlds]
        self.processes: list[BaseProcess] = [CONTEXT.Process(target=_be_a_rank, args=args) for args in arguments]

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def join(self, timeout: float = 120) -> list[int | None]:
        """Wait for all, together at most so many seconds; their exit codes."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def kill(self) -> list[int | None]:
        """SIGKILL for all of them at once; their exit codes."""
        for process in self.processes:
            process.kill()
        return self.join()

    def run(self, longest_seconds: float = LONGEST_SECONDS) -> list[int | None]:
        """Start, and wait for all; their exit codes. If one fails others may wait for it for ever, and are killed."""
        self.start()
        try:
            while all(process.exitcode in (0, None) for process in self.processes):
                waiting = [process.sentinel for process in self.processes if process.exitcode is None]
                if not waiting or not wait(waiting, longest_seconds):
                    break
            return self.join(SECONDS_TO_FOLLOW)
        finally:
            self.kill()


def assembling_ahead(world: World) -> AssemblingAhead | None:
    """As the first rank of a machine has it: forked, while the rank has one thread."""
    return AssemblingAhead(can_fork=True) if world.local_rank == 0 else None


def train_segment(spec: SegmentSpec, world: World) -> Any:
    """What `training.agents.rank` does, but for signals. Returns what must live until the process has left."""
    return run_segment(spec, world, StopFlag(), assembling_ahead(world))


def evaluate_as_a_rank(spec: SegmentSpec, world: World) -> None:
    """What `training.agents.rank` does for an evaluation."""
    evaluate(spec, world, StopFlag())


def _be_a_rank(spec_json: str, world: World, target: Callable[[SegmentSpec, World], Any]) -> None:
    follow_parent()
    spec = SegmentSpec.model_validate_json(spec_json)
    work_and_leave(lambda: target(spec, world), spec.scratch_folder / "ranks.log")


def work_and_leave(work: Callable[[], Any], log: Path) -> NoReturn:
    """Do it, and end this process as a rank ends; what it and torch's C++ print goes to the log."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    exit_code = 0
    try:
        _kept = work()
    except BaseException:  # noqa: BLE001 - whatever it was, the process says it and leaves
        traceback.print_exc()
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
