"""What Prefect's engines take to be around a call: a task, a transaction, tags, and the name of the task run.

Private: the context variables behind Prefect's context classes. Invariant: what was around is around again afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect.context import TagsContext, TaskRunContext
from prefect.transactions import Transaction

USES = (
    "prefect.context.TaskRunContext.__var__",
    "prefect.context.TaskRunContext.task_run.name",
    "prefect.context.TagsContext",
    "prefect.transactions.Transaction.__var__",
)


@contextmanager
def outside_of_transactions() -> Iterator[None]:
    """Around a call of a task: it joins no transaction.

    Uses `Transaction.__var__`. Prefect has nothing public that calls a task within another one outside of its
    transaction. Without it a step that fails has the steps within it shown as rolled back, though what they did stands
    in the store.
    """
    with _set_to_none(Transaction.__var__):
        yield


@contextmanager
def outside_of_tasks() -> Iterator[None]:
    """Around submitting tasks: Prefect sees no task that is running, and hands none to their processes.

    Uses `TaskRunContext.__var__`. Prefect has nothing public that leaves a context out of what a task runner hands on.
    Without it the parameters of the step that is running would go to each of Dask's processes, which cannot have them.
    """
    with _set_to_none(TaskRunContext.__var__):
        yield


@contextmanager
def without_tags() -> Iterator[None]:
    """Around a call of a task: it has no tags, whatever tags its flow run has.

    Uses `TagsContext`, to which the public `prefect.tags` can only add. Without it a task of a flow run that has tags
    asks the server for a slot under a concurrency limit before it begins, and so waits for a server that is away.
    """
    with TagsContext(current_tags=set()):
        yield


def rename_step(name: str) -> None:
    """Name the task that is running; the next state that Prefect's server hears of has it. Outside of one: nothing.

    Uses that `TaskRunContext.task_run` is the object that the engine sends. `task_run_name` is asked before the task
    begins, when it is not known yet what to call it. Without it the task keeps its first name.
    """
    context = TaskRunContext.get()
    if context is not None:
        context.task_run.name = name


@contextmanager
def _set_to_none(variable: ContextVar[Any]) -> Iterator[None]:
    token = variable.set(None)
    try:
        yield
    finally:
        variable.reset(token)
