"""The status of this rank, written down every few seconds for the supervisor of all ranks.

Invariant: training sets a name and adds a number up; a thread of its own writes, so a disk that hangs delays no step.
A process that stands still, or whose machine does, is known by its silence.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field

STATUS_SECONDS = 2.0


class Phase(StrEnum):
    """What a rank is at; a name is the phase's where it has one."""

    STARTING = "start"
    RESTORING = "restore"
    COMPUTING = "train"
    INPUT = "input"  # waits for samples
    SHARED = "shared"  # waits for samples that another process of the machine is decoding
    OTHERS = "others"  # waits for what the other ranks send
    VALIDATING = "validate"
    EVALUATING = "evaluate"
    SAVING = "save"


class Collective(StrEnum):
    """What ranks wait for each other at, in words that follow "for"."""

    GRADIENTS = "the sum of the gradients"
    LARGEST_GRADIENT = "the largest gradient of a step that is computed again"
    WEIGHTS = "the first weights"
    BOUNDARY = "the decision at the step's boundary"
    PREDICTIONS = "each other's predictions"
    DIGESTS = "the digests of a checkpoint's files"
    HASHES = "the hashes of weights and optimizer"
    LABELS = "the names of ranks that differ"
    TROUBLE = "word whether saving or restoring went well"
    STATE = "the state of the rank that is furthest"
    VIEW = "the ranks that are left"
    RESTORED = "the files of the checkpoint"


class RankStatus(BaseModel):
    """Status of one rank, as it was a moment ago."""

    rank: int
    host: str
    pid: int | None = None
    beat: int = Field(description="Counts up as long as the process runs.")
    step: int
    phase: Phase
    collective: Collective | None = Field(None, description="Where it waits for the other ranks.")
    seconds: float = Field(description="For so long in this phase by now.")
    microbatches: int = Field(description="Computed since the rank began.")
    spent: dict[Phase, float] = Field(description="Seconds in each phase since the rank began.")


class StatusWriter:
    """Writes the status of this rank; nothing before `begin`."""

    def __init__(self) -> None:
        self.step = self.microbatches = 0
        self._phase, self._since = Phase.STARTING, time.monotonic()
        self._collective: Collective | None = None
        self._spent: dict[Phase, float] = {}
        self._beat = 0

    def begin(self, folder: Path, rank: int) -> None:
        """Write the status into this folder, from now on to the end of the process."""
        arguments = (rank_status_file(folder, rank), rank)
        threading.Thread(target=self._write_again_and_again, args=arguments, name="rank_status", daemon=True).start()

    @contextmanager
    def at(self, phase: Phase) -> Iterator[None]:
        """The block is spent in this phase; afterwards the rank is in the one before."""
        before = self._phase
        self._go_to(phase)
        try:
            yield
        finally:
            self._go_to(before)

    @contextmanager
    def waiting_for_ranks(self, collective: Collective) -> Iterator[None]:
        """Context of a collective in the midst of training."""
        self._collective = collective
        with self.at(Phase.OTHERS):
            yield

    @contextmanager
    def waiting_for_samples(self) -> Iterator[None]:
        """Context of a wait for samples that another process decodes; threads that work ahead do not count."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self.at(Phase.SHARED):
            yield

    def _go_to(self, phase: Phase) -> None:
        now = time.monotonic()
        self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def _write_again_and_again(self, file: Path, rank: int) -> None:
        while True:
            with suppress(OSError):  # a full disk, or a folder that is put away: missing reports are the report
                self._write(file, rank)
            time.sleep(STATUS_SECONDS)  # this is a clock's work

    def _write(self, file: Path, rank: int) -> None:
        self._beat += 1
        phase, collective, seconds = self._phase, self._collective, time.monotonic() - self._since
        spent = dict(self._spent)
        spent[phase] = spent.get(phase, 0.0) + seconds
        rank_status = RankStatus(
            rank=rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            beat=self._beat,
            step=self.step,
            phase=phase,
            collective=collective if phase is Phase.OTHERS else None,
            seconds=seconds,
            microbatches=self.microbatches,
            spent=spent,
        )
        new = file.with_suffix(".new")
        new.write_text(rank_status.model_dump_json(), encoding="utf-8")
        new.replace(file)


def rank_status_file(folder: Path, rank: int) -> Path:
    """The file with the status of a rank."""
    return folder / f"rank-status-{rank:04d}.json"


def read_rank_statuses(folder: Path) -> list[RankStatus]:
    """The statuses of the ranks of this machine that have written theirs, by rank."""
    found = []
    for path in sorted(folder.glob("rank-status-*.json")):
        with suppress(FileNotFoundError):  # the rank died just now, and its agent took the file away
            found.append(RankStatus.model_validate_json(path.read_bytes()))
    return found
