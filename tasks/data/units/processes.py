"""Processes of this machine that do units.

Invariant: they are handed nothing but addresses and give back nothing, they load nothing that units do not need, and
they end with the process that started them.
"""

import atexit
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread
from types import TracebackType
from typing import Self

from tasks.data.units.work import do_unit_at
from tasks.data.units.workspace import Address


class UnitProcesses:
    """A context manager: as long as its block lasts, so many processes wait for units."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._takes_units = True
        # Not forked: threads of this process may hold locks that would never be released in a copy.
        self._pool = ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_belong_to_parent)

    def __enter__(self) -> Self:
        for _ in range(self._num_processes):
            self._pool.submit(_begin)  # each starts a process, which loads its libraries before there is a unit
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def do(self, address: Address, stage: str, index: int) -> None:
        """Do a unit in one of the processes, and wait for it; from as many threads at a time as there are processes.

        Raises what the unit raises, and `BrokenProcessPool` if a process was killed.
        """
        if not self._takes_units:
            raise RuntimeError("a unit before this one has failed")
        self._pool.submit(do_unit_at, address, stage, index).result()

    def take_no_more(self) -> None:
        """From now on `do` raises `RuntimeError`: what has failed does not wait for units that are not needed."""
        self._takes_units = False


def _begin() -> None:
    """What a process does so that it is there."""


def _belong_to_parent() -> None:
    """Once in each process: it ends with the one that started it, which alone hears of Ctrl-C."""
    Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # DuckDB's binding prints a page about leaks if Python takes its modules apart.
    atexit.register(os._exit, 0)


def _end_with_parent() -> None:
    # Not by the signal that Linux can send: that comes when the thread ends which started this process.
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
