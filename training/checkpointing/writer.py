"""Writing this rank's part of a save to the store: beside training in a thread of its own, or at once.

Hashing and writing let go of Python's lock, so one thread disturbs training as little as a process would and needs no
shared memory (measured: `tests/benchmarks/bench_checkpoint.py`). Invariant: no collective is called here, and a thread
that was asked to give up writes nothing that a reader could take for a checkpoint: the index is another job.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from storage.backoff import Backoff
from storage.checkpoints.checkpoints import (
    INDEX_NAME,
    STATE_NAME,
    CheckpointFile,
    CheckpointIndex,
    put_checkpoint_file,
)
from storage.errors import ObjectMissingError, StoreError
from storage.objects.history import SealedPart
from storage.objects.store import Store
from storage.runs.ledger import LedgerHeader, write_ledger_part
from training.checkpointing.state_tensors import HostFile

Result = TypeVar("Result")
ATTEMPTS = 3
BACKOFF = Backoff(first_seconds=2.5, limit_seconds=5.0, least_share=0.6)
# On average, the pauses alone.
SECONDS_OF_ATTEMPTS = sum(BACKOFF.mean_seconds(number) for number in range(1, ATTEMPTS))


class Writing(IntEnum):
    """What a rank's writer is about; of all ranks' words the highest counts."""

    DONE = 0
    BUSY = 1
    FAILED = 2


@dataclass(frozen=True)
class SavePart:
    """What one rank writes of a checkpoint in the folder `path`; what has a default is the first rank's.

    `next_ledger` is the part of the ledger that this save adds, if any; `history` are the parts of the history that
    `state` builds on and that no checkpoint vouches for yet. `note` is called with each file before it is put.
    """

    path: str
    files: Iterable[HostFile]
    state: bytes | None = None
    history: Sequence[SealedPart] = ()
    next_ledger: tuple[LedgerHeader, pa.Table] | None = None
    note: Callable[[HostFile], object] = lambda file: None


@dataclass(frozen=True)
class WrittenPart:
    """What became of a `SavePart`, in the store: its files, and the ledger's part that it added."""

    files: dict[str, CheckpointFile]
    ledger: CheckpointFile | None = None


class CheckpointWriter:
    """One thread that does one job after the other. `folder` is scratch on local disk."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._jobs: list[Future[Any]] = []
        self._given_up = threading.Event()

    @property
    def writing(self) -> Writing:
        """How far the last jobs are, all together."""
        if not all(job.done() for job in self._jobs):
            return Writing.BUSY
        return Writing.FAILED if any(job.exception() for job in self._jobs) else Writing.DONE

    def start(self, *work: Callable[[threading.Event], Any]) -> None:
        """Do `work` beside training; the argument of each tells whether to give up."""
        self._given_up, self._jobs = threading.Event(), []
        for one in work:
            self.add(one)

    def add(self, work: Callable[[threading.Event], Any]) -> None:
        """Do this, too, after what was started last."""
        self._jobs.append(self._thread.submit(work, self._given_up))

    def results(self) -> list[Any]:
        """What the last jobs returned, once they are done; raises what one of them raised."""
        return [job.result() for job in self._jobs]

    def ends_well(self) -> bool:
        """Wait for the last jobs; whether they did what they were to do."""
        return not [error for job in self._jobs if (error := job.exception()) is not None]

    def failure(self) -> BaseException | None:
        """What one of the last jobs raised; None if none did, or is still at work."""
        return next(filter(None, (job.exception() for job in self._jobs if job.done())), None)

    def cancel(self) -> None:
        """Have the last jobs give up. They stay the last jobs: `writing` shows when they have ended."""
        self._given_up.set()

    def give_up(self) -> None:
        """Let go of the last jobs; they are not waited for."""
        self.cancel()
        self._jobs = []

    def write(self, part: SavePart, given_up: threading.Event) -> WrittenPart:
        """Put all files of a part. Raises the last `StoreError` or `OSError` after three attempts at one of them."""
        # Of its own for each save: one that was given up may still be at work.
        scratch = self._folder / part.path.rpartition("/")[2]
        scratch.mkdir(parents=True, exist_ok=True)
        ledger: CheckpointFile | None = None
        files: dict[str, CheckpointFile] = {}
        if part.next_ledger is not None:
            header, table = part.next_ledger
            added = attempt(lambda: write_ledger_part(self._store, header, table, scratch), given_up)
            ledger = CheckpointFile(num_bytes=added.num_bytes, sha256=added.sha256)
        for file in part.files:
            part.note(file)
            name = file.layout.name
            files[name] = self._put(f"{part.path}/{name}", file.data.numpy().data, scratch / name, given_up)
        for sealed in part.history:
            attempt(partial(sealed.write, self._store), given_up)
        if part.state is not None:
            key = f"{part.path}/{STATE_NAME}"
            files[STATE_NAME] = self._put(key, memoryview(part.state), scratch / STATE_NAME, given_up)
        shutil.rmtree(scratch, ignore_errors=True)
        return WrittenPart(files, ledger)

    def write_for_another(self, part: SavePart, given_up: threading.Event) -> WrittenPart:
        """The same for a rank that died, which may have put some of it, or all.

        Where the index is in the store, all is, to stay: nothing is put anew then, not even the same bytes.
        """
        try:
            data = self._store.read(f"{part.path}/{INDEX_NAME}")
        except ObjectMissingError:
            return self.write(part, given_up)
        index, files = CheckpointIndex.model_validate_json(data), list(part.files)
        for file in files:
            part.note(file)
        names = [file.layout.name for file in files] + [STATE_NAME] * (part.state is not None)
        ledger = index.ledger if part.next_ledger is not None else None
        added = None if ledger is None else CheckpointFile(num_bytes=ledger.num_bytes, sha256=ledger.sha256)
        return WrittenPart({name: index.files[name] for name in names}, added)

    def _put(self, key: str, data: memoryview, scratch: Path, given_up: threading.Event) -> CheckpointFile:
        return attempt(lambda: put_checkpoint_file(self._store, key, data, scratch, given_up.is_set), given_up)


def attempt(work: Callable[[], Result], given_up: threading.Event) -> Result:
    """Do what may fail for a while up to three times, with a pause that doubles; raises what it raised at last."""
    for number in range(1, ATTEMPTS):
        try:
            return work()
        except (StoreError, OSError) as error:
            print(f"Saving: attempt {number} of {ATTEMPTS} failed: {error}", flush=True)
            given_up.wait(BACKOFF.draw_seconds(number))
    return work()
