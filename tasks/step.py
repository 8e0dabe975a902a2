"""What makes a function a step of the chain that a person reads in the Prefect UI.

Each step is a Prefect task with a name that reads well, and its final state is one sentence about what came of it: red
where that is `Trouble`, though the chain goes on, cancelled where its end was requested, and skipped where another
process has the run.
Invariant: nothing that a step reports to Prefect waits for Prefect's server. The engine of a task hands its states to a
thread as events; a tag would make it ask the server for a slot under a concurrency limit, so a step has none, whatever
tags its flow run has.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from prefect import State, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Completed, Failed

from storage.errors import FencedError, RunBusyError, RunHandedOverError, RunStoppedError
from tasks.console.announce import Trouble
from tasks.prefect_bridge.flow_runs import SKIPPED
from tasks.prefect_bridge.private.contexts import outside_of_transactions, without_tags
from tasks.prefect_bridge.returned import call_through_prefect, current_call
from tasks.prefect_bridge.suspension import ended_before_suspension

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

HANDED_OVER = "HandedOver"


def step(
    name: str, run_name: str | None = None
) -> Callable[[Callable[Parameters, tuple[Value, str]]], Callable[Parameters, Value]]:
    """A decorator: the function returns its value and one sentence for a person; the step returns the value alone.

    `run_name` is a format string over the function's parameters. Nothing is cached or persisted: what a step did stands
    in the store, and the run's manifest alone decides where the run goes on.
    """

    def decorate(work: Callable[Parameters, tuple[Value, str]]) -> Callable[Parameters, Value]:
        @task(name=name, task_run_name=run_name or name, cache_policy=NO_CACHE, persist_result=False, retries=0)
        @wraps(work)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State[None]:
            returned = current_call()
            try:
                value, sentence = work(*args, **kwargs)
            except RunStoppedError as stopped:
                returned.note_error(stopped)
                name = HANDED_OVER if isinstance(stopped, RunHandedOverError) else None
                return Cancelled(name=name, message=str(stopped))
            except (RunBusyError, FencedError) as busy:
                returned.note_error(RunBusyError(str(busy)))
                return Completed(name=SKIPPED, message=str(busy))
            returned.note(value)
            return (Failed if isinstance(sentence, Trouble) else Completed)(message=sentence)

        @wraps(work)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
            with ended_before_suspension(), outside_of_transactions(), without_tags():
                returned = call_through_prefect(lambda: run(*args, **kwargs))
            return cast("Value", returned.take())

        return call

    return decorate
