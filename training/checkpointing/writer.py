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
from storage.checkpoints.checkpoints import STATE_NAME, CheckpointFile, put_checkpoint_file
from storage.errors import StoreError
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
        self._job: Future[Any] | None = None
        self._given_up = threading.Event()

    @property
    def writing(self) -> Writing:
        """How far the last job is."""
        if self._job is None or (self._job.done() and self._job.exception() is None):
            return Writing.DONE
        return Writing.FAILED if self._job.done() else Writing.BUSY

    def start(self, work: Callable[[threading.Event], Any]) -> None:
        """Do `work` beside training; its argument returns whether to give up."""
        self._given_up = threading.Event()
        self._job = self._thread.submit(work, self._given_up)

    def result(self) -> Any:
        """What the last job returned, once it is done; raises what it raised."""
        assert self._job is not None
        return self._job.result()

    def ends_well(self) -> bool:
        """Wait for the last job; whether it did what it was to do."""
        return self._job is None or self._job.exception() is None

    def failure(self) -> BaseException | None:
        """What the last job raised; None if it did not, or is still at work."""
        return self._job.exception() if self._job is not None and self._job.done() else None

    def cancel(self) -> None:
        """Have the last job give up. It stays the last job: `writing` shows when it has ended."""
        self._given_up.set()

    def give_up(self) -> None:
        """Let go of the last job; it is not waited for."""
        self.cancel()
        self._job = None

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
