"""Task `prepare unit`: units of a preparation, in processes of this machine or on the workers of Dask.

On this machine a task is a thread that hands its units to a process, one after the other, and waits: Prefect in each of
these processes would take about as much of the processors as the units themselves, and a task for each unit a tenth.
Invariant: a unit is handed over as one callable with nothing but addresses in it, and gives back nothing: what it
leaves is in the store. Who does it decides no byte.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from storage.errors import ConfigurationError, StoreError
from storage.processors import count_processors
from tasks.configuration.run import DataConfig, PrepareConfig
from tasks.data.units.chunks import num_processes_within
from tasks.data.units.processes import UnitProcesses
from tasks.data.units.work import do_unit_at
from tasks.data.units.workspace import Address
from tasks.prefect_bridge.private.contexts import outside_of_tasks

Value = TypeVar("Value")


# What a pool and Dask raise when a process that was at work is no more.
KILLED = ("BrokenProcessPool", "KilledWorker")
CONNECT_SECONDS = 15
# The flow around this one sends heartbeats, in the same process. Prefect waits for what beats, up to a second.
NO_HEARTBEATS = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
MOST_TOGETHER = 8  # units in a task: a few seconds, after which a person sees how far it is
# A flow is handed to each process of a pool with all that it refers to: so this is not one of its parameters.
_attended: ContextVar[Callable[[], None]] = ContextVar("attended")


class PrefectUnits:
    """The `Engine` whose units are mapped Prefect tasks."""

    def __init__(self, data: DataConfig, prepare: PrepareConfig) -> None:
        self._data = data
        self._prepare = prepare
        self._processes: UnitProcesses | None = None

    def attend(self, prepare: Callable[[], Value]) -> Value:
        """Call `prepare` in a flow of its own, whose task runner the units run on."""
        results: list[Value] = []
        attended = _attended.set(lambda: results.append(prepare()))
        try:
            with self._task_runner() as task_runner, temporary_settings(NO_HEARTBEATS):
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
        futures = {}
        with outside_of_tasks():
            for together in self._together(indices):
                work = [self.work_on(address, stage, index) for index in together]
                futures[do_units.submit(_name_of(stage, together), work)] = len(together)
        try:
            for future in as_completed(list(futures)):
                _raise_if_failed(future)
                for _ in range(futures[future]):
                    on_done()
        except BaseException:
            # Also those that have not begun of a task that has.
            if self._processes is not None:
                self._processes.take_no_more()
            raise

    def work_on(self, address: Address, stage: str, index: int) -> Callable[[], None]:
        """What does a unit, wherever it is called."""
        return partial(do_unit_at if self._processes is None else self._processes.do, address, stage, index)

    def _together(self, indices: Sequence[int]) -> Iterator[Sequence[int]]:
        """The units of each task. On Dask each has its own: how many workers there are changes meanwhile."""
        num_at_a_time = self._num_processes if self._processes is not None else len(indices)
        first = 0
        for size in sizes_of_tasks(len(indices), num_at_a_time):
            yield indices[first : first + size]
            first += size

    @contextmanager
    def _task_runner(self) -> Iterator[TaskRunner[Any]]:
        if self._prepare.dask is not None:
            yield _on_dask(self._prepare.dask)
            return
        with UnitProcesses(self._num_processes) as self._processes:
            yield ThreadPoolTaskRunner(max_workers=self._num_processes)

    @property
    def _num_processes(self) -> int:
        return min(self._prepare.workers or count_processors(), num_processes_within(self._data))


def _raise_if_failed(future: PrefectFuture[None]) -> None:
    """What a unit leaves is in the store: of a task that ended well nothing is asked, least of all its value."""
    future.wait()
    if not future.state.is_completed():
        future.result()


def sizes_of_tasks(num_units: int, num_at_a_time: int) -> list[int]:
    """How many units each task does: fewer and fewer, so that at the end no process waits long for another one."""
    sizes: list[int] = []
    while num_left := num_units - sum(sizes):
        sizes.append(max(1, min(MOST_TOGETHER, num_left // (num_at_a_time + 1))))
    return sizes


def _name_of(stage: str, indices: Sequence[int]) -> str:
    return f"{stage} {indices[0]}" if len(indices) == 1 else f"{stage} {indices[0]} to {indices[-1]}"


def _on_dask(address: str) -> TaskRunner[Any]:
    try:
        from distributed import Client  # here: an optional package, as the next
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigurationError(
            f"prepare.dask is {address!r}, which needs the package prefect-dask: it is not installed. Install it here "
            "and where Dask's workers run, or take prepare.dask out to prepare on this machine."
        ) from error
    try:
        Client(address, timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"prepare.dask is {address!r}, but no Dask scheduler answers there: {error} Start it, correct the address, "
            "or take prepare.dask out to prepare on this machine."
        ) from error
    return DaskTaskRunner(address=address)


@flow(name="prepare units", flow_run_name="units", persist_result=False, retries=0)
def _prepare_units() -> None:
    _call_attended()


def _call_attended() -> None:
    _attended.get()()


@task(name="prepare unit", task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False, retries=0)
def do_units(name: str, work: Sequence[Callable[[], None]]) -> None:
    """Do these units, one after the other."""
    for do_unit in work:
        do_unit()
