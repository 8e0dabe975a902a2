"""Preparations of small sources that are cut into many units, as those of large sources are.

Invariant: what becomes of a source does not depend on it; only how much is done at a time does.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.units import chunks as chunks
from tasks.data.units import opening
from tasks.data.units.staging import Record
from tasks.data.units.work import STAGES, OneByOne, do_unit_at
from tasks.data.units.workspace import Address, Workspace
from tasks.prepare_unit import PrefectUnits

CHUNK_BYTES = 20_000


@contextmanager
def cut_small(chunk_bytes: int = CHUNK_BYTES) -> Iterator[None]:
    """Meanwhile every source counts as large, and a chunk has no more bytes than this."""
    with (
        mock.patch.object(opening, "SMALL_SOURCE_BYTES", 0),
        mock.patch.object(chunks, "LARGEST_CHUNK_BYTES", chunk_bytes),
    ):
        yield


class Counted(OneByOne):
    """Does units in this process, tells which, and fails at the n-th."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.done: list[str] = []
        self.fail_at = fail_at

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        for index in indices:
            if len(self.done) == self.fail_at:
                raise OSError("the machine is gone")
            self.done.append(f"{stage} {index}")
            super().run(address, stage, [index], on_done)


class Noted(PrefectUnits):
    """Units as Prefect tasks, each of which adds a line to a file when it is begun."""

    def __init__(self, log: Path, *configurations: object) -> None:
        super().__init__(*configurations)  # type: ignore[arg-type]
        self.log = log

    def work_on(self, address: Address, stage: str, index: int) -> Callable[[], None]:
        """As in `PrefectUnits`."""
        call = note_and_call if self._processes is not None else call_and_note
        return partial(call, self.log, stage, index, super().work_on(address, stage, index))


def note_and_call(log: Path, stage: str, index: int, work: Callable[[], None]) -> None:
    """Note a unit, and have it done in another process."""
    with log.open("a") as file:
        file.write(f"{stage} {index}\n")
    work()


def call_and_note(log: Path, stage: str, index: int, work: Callable[[], None]) -> None:
    """Do a unit in this process, and note it unless it turns out to be done."""

    def note_and_do(workspace: Workspace, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
        note_and_call(log, stage, index, lambda: None)
        return unit(workspace, index, folder)

    unit = STAGES[stage]
    with mock.patch.dict(STAGES, {stage: note_and_do}):
        work()


def prepare_and_die(config: str, store: str, scratch: str, at: str) -> None:
    """Run in a process of its own: it is killed without warning as it begins the n-th unit."""
    num_begun = 0

    def count_and_do(address: Address, stage: str, index: int) -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        do_unit_at(address, stage, index)

    with cut_small(), mock.patch("tasks.data.units.work.do_unit_at", count_and_do):
        prepare_dataset(DataConfig.model_validate_json(config), LocalStore(Path(store)), Path(scratch))
