"""The flow runs of this process and of others before it, as Prefect's server knows them.

Invariant: a server that does not answer knows nothing, and is not waited for; a flow run is called crashed only by
a process that found its process gone, and running by its own process.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed, Running

from tasks.prefect_bridge.server import impatient_client

# The name of the final state of what was left to another process, or to a later flow run.
SKIPPED = "Skipped"
CANCELS = ("Cancelling", "Cancelled")
UNDER_WAY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
TO_BEGIN = (StateType.SCHEDULED, StateType.PENDING)
# Not CANCELLED: a user asked for that.
OVER = (StateType.CRASHED, StateType.COMPLETED, StateType.FAILED)
STEPS_AT_A_TIME = 200  # a server gives no more


def find_line() -> list[FlowRun]:
    """The flow run of this process, and those within which it runs, as the server knows them now, the outermost last.

    None where there is none or no server answers.
    """
    own = find_own()
    if own is None:
        return []
    try:
        with impatient_client() as client:
            return list(_read_line(client, own))
    except (httpx.HTTPError, PrefectException):
        return []


def find_own() -> UUID | None:
    """The flow run of this process, if it has one and there is a server to be asked; nobody is asked for that."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or PREFECT_API_URL.value() is None:
        return None
    return context.flow_run.id


def is_cancelled(line: Sequence[FlowRun]) -> bool:
    """Whether one of these flow runs is being cancelled."""
    return any(flow_run.state is not None and flow_run.state.name in CANCELS for flow_run in line)


def is_to_begin(line: Sequence[FlowRun]) -> bool:
    """Whether the outermost of these, which is a deployment's, waits for a worker, though this process works for it."""
    state = line[-1].state if line and line[-1].deployment_id is not None else None
    return state is not None and state.type in TO_BEGIN


def is_called_over(line: Sequence[FlowRun]) -> bool:
    """Whether one of these is shown as ended."""
    return any(flow_run.state is not None and flow_run.state.type in OVER for flow_run in line)


def call_running(line: Sequence[FlowRun], message: str) -> None:
    """Set those that are shown as ended to running. For the process that works for them alone."""
    with suppress(httpx.HTTPError, PrefectException), impatient_client() as client:
        for flow_run in line:
            if is_called_over([flow_run]):
                client.set_flow_run_state(flow_run.id, Running(message=message), force=True)


def call_suspended(line: Sequence[FlowRun]) -> None:
    """Set the outermost of these to suspended again, if it is shown as that, and those within it too.

    For their process alone, as the last call that it makes: what comes before a sign of life does not count as its end.
    Raises `httpx.HTTPError` and `PrefectException`.
    """
    with impatient_client() as client:
        state = client.read_flow_run(line[-1].id).state
        if state is None or not state.is_paused():
            return  # it was resumed meanwhile, or ended
        for flow_run in line[:-1]:
            found = client.read_flow_run(flow_run.id).state
            if found is not None and found.type in UNDER_WAY:
                # Not to be rescheduled by itself: it goes on within the one around it.
                within = State[None](type=StateType.PAUSED, name=state.name, message=state.message)
                client.set_flow_run_state(flow_run.id, within, force=True)
        client.set_flow_run_state(line[-1].id, state, force=True)


def call_crashed(ids: Collection[str], message: str) -> None:
    """Set flow runs whose process is gone, and their steps, to crashed; if they are shown as under way."""
    own = {flow_run.id for flow_run in find_line()}  # Prefect may have begun the same flow run again, in this process
    gone = [UUID(id) for id in ids if UUID(id) not in own]
    if not gone or PREFECT_API_URL.value() is None:
        return
    try:
        with impatient_client() as client:
            close(client, gone, message)
    except (httpx.HTTPError, PrefectException):
        return  # it is shown wrongly until the reconciler corrects it


def close(client: SyncPrefectClient, gone: Sequence[UUID], message: str) -> None:
    """As `call_crashed`, of other processes' flow runs. Raises `httpx.HTTPError` and `PrefectException`."""
    crashed: State[None] = Crashed(message=message)
    those = FlowRunFilter(id=FlowRunFilterId(any_=list(gone)))
    for step in _find_steps_under_way(client, those):
        client.set_task_run_state(step.id, crashed, force=True)
    for flow_run in client.read_flow_runs(flow_run_filter=those):
        if flow_run.state is not None and flow_run.state.type in UNDER_WAY:
            client.set_flow_run_state(flow_run.id, crashed, force=True)


def find_below(client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[FlowRun]:
    """The flow runs that work within this one, however deep. Raises `httpx.HTTPError` and `PrefectException`.

    One that a person has paused or cancelled is left out, with what is within it.
    """
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    around = [flow_run_id]
    while around:
        within = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=around), state=states)
        found = client.read_flow_runs(flow_run_filter=within)
        yield from found
        around = [flow_run.id for flow_run in found]


def _find_steps_under_way(client: SyncPrefectClient, those: FlowRunFilter) -> Iterator[TaskRun]:
    """A run of days has thousands that have ended: the server picks out the others."""
    state = TaskRunFilterState(type=TaskRunFilterStateType(any_=list(UNDER_WAY)))
    given: set[UUID] = set()
    while True:
        steps = client.read_task_runs(
            flow_run_filter=those, task_run_filter=TaskRunFilter(state=state), limit=STEPS_AT_A_TIME
        )
        others = [step for step in steps if step.id not in given]
        yield from others
        given |= {step.id for step in others}
        if not others:
            return


def _read_line(client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[FlowRun]:
    found = client.read_flow_run(flow_run_id)
    yield found
    if found.parent_task_run_id is not None:
        parent = client.read_task_run(found.parent_task_run_id).flow_run_id
        assert parent is not None, "the task within which a flow runs is a flow's"
        yield from _read_line(client, parent)
