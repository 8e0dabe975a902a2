"""Task `prepare unit`: one unit of a preparation, on a pool of processes of this machine or on the workers of Dask.

Invariant: a unit is handed over as one callable with nothing but addresses in it, and gives back nothing: what it
leaves is in the store. Who does it decides no byte.
"""

import atexit
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from multiprocessing import parent_process
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar, cast

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.futures import as_completed
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from storage.errors import ConfigurationError, StoreError
from tasks.configuration import DataConfig, PrepareConfig
from tasks.data.units.pieces import num_processes_within
from tasks.data.units.place import Address
from tasks.data.units.work import do_unit_at

Value = TypeVar("Value")


# What a pool and Dask raise when a process that was at work is no more.
KILLED = ("BrokenProcessPool", "KilledWorker")
CONNECT_SECONDS = 15
# A flow is handed to each process of a pool with all that it refers to: so this is not one of its parameters.
_attended: ContextVar[Callable[[], None]] = ContextVar("attended")


class PrefectUnits:
    """The `Engine` whose units are mapped Prefect tasks."""

    def __init__(self, data: DataConfig, prepare: PrepareConfig) -> None:
        self._data = data
        self._prepare = prepare

    def attend(self, prepare: Callable[[], Value]) -> Value:
        """Call `prepare` in a flow of its own, whose task runner the units run on."""
        results: list[Value] = []
        task_runner = self._pool() if self._prepare.dask is None else _on_dask(self._prepare.dask)
        attended = _attended.set(lambda: results.append(prepare()))
        try:
            _prepare_units.with_options(task_runner=task_runner)()
        except Exception as error:
            if type(error).__name__ not in KILLED:
                raise
            raise StoreError(
                "A process that prepared data was killed, most likely because memory ran out. Run again with fewer "
                "prepare.workers or a smaller data.memory_limit, or with more memory where Dask's workers run: what is "
                "prepared already is kept."
            ) from error
        finally:
            _attended.reset(attended)
        return results[0]

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        """Map the task over the units. The first that fails ends the flow, and so those that have not begun."""
        with _outside_of_steps():
            futures = [do_unit.submit(f"{stage} {index}", self.work_on(address, stage, index)) for index in indices]
        for future in as_completed(futures):
            future.result()
            on_done()

    def work_on(self, address: Address, stage: str, index: int) -> Callable[[], None]:
        """What does a unit, wherever it is called."""
        return partial(_work_in_pool if self._prepare.dask is None else do_unit_at, address, stage, index)

    def _pool(self) -> TaskRunner[Any]:
        most = self._prepare.workers or os.cpu_count() or 1
        return ProcessPoolTaskRunner(max_workers=min(most, num_processes_within(self._data)))


def _on_dask(address: str) -> TaskRunner[Any]:
    try:
        from distributed import Client
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigurationError(
            f"prepare.dask is {address!r}, which needs the package prefect-dask: it is not installed. Install it here "
            "and where Dask's workers run, or take prepare.dask out to prepare on this machine."
        ) from error
    try:
        Client(address, timeout=CONNECT_SECONDS).close()  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"prepare.dask is {address!r}, but no Dask scheduler answers there: {error} Start it, correct the address, "
            "or take prepare.dask out to prepare on this machine."
        ) from error
    return DaskTaskRunner(address=address)


@contextmanager
def _outside_of_steps() -> Iterator[None]:
    """Prefect hands the task that is running to each process too, with parameters that no other process can have."""
    running = cast("ContextVar[TaskRunContext | None]", TaskRunContext.__var__)
    token = running.set(None)
    try:
        yield
    finally:
        running.reset(token)


@flow(name="prepare units", flow_run_name="units", persist_result=False)
def _prepare_units() -> None:
    _call_attended()


def _call_attended() -> None:
    _attended.get()()


@task(name="prepare unit", task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def do_unit(name: str, work: Callable[[], None]) -> None:
    """Do one unit."""
    work()


def _work_in_pool(address: Address, stage: str, index: int) -> None:
    _belong_to_the_pool()
    do_unit_at(address, stage, index)


@cache
def _belong_to_the_pool() -> None:
    """Once in each process of the pool: it ends with the one that started it, which alone hears of Ctrl-C."""
    Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # DuckDB's binding prints a page about leaks if Python takes its modules apart.
    atexit.register(os._exit, 0)


def _end_with_parent() -> None:
    # Not by the signal that Linux can send: that comes when the thread ends which started this process.
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
