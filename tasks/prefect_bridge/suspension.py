"""A flow run that a user suspends in Prefect while a step works.

Prefect's engine then raises `Pause` where the next step begins or ends, which may be within another step, between two
writes that belong together. Invariant: a step is not broken off. It sees the request, ends by itself, and has a state
that records this; only then the flow run is left, to be begun again by *Resume*. That it is suspended is the last that
is heard of its process: a sign of life that Prefect sent after a person's *Pause* would let it pass for one that fell
silent. As long as it is suspended no tick of a schedule goes on with the run.
"""

import atexit
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException

from storage.errors import StoreError
from storage.segment_notes import find_flow_runs
from tasks.prefect_bridge.flow_runs import call_suspended, find_line, find_own
from tasks.prefect_bridge.private.suspensions import SuspensionRequest, hidden_suspension
from tasks.prefect_bridge.run_deployments import find_wish
from tasks.prefect_bridge.server import impatient_client
from tasks.run_paths import RunPaths

NUM_TRIES = 3
PAUSE_SECONDS = 5.0

# What Prefect's engine watches the server for; None outside of a step.
_watched: ContextVar[SuspensionRequest | None] = ContextVar("watched", default=None)


@contextmanager
def ended_before_suspension() -> Iterator[None]:
    """Around a step: within, Prefect's engine sees no suspension; it does again at the block's end."""
    context = FlowRunContext.get()
    if context is None or _watched.get() is not None:
        yield
        return
    with hidden_suspension(context) as request:
        token = _watched.set(request)
        try:
            yield
        finally:
            _watched.reset(token)
            if request.is_requested() and (line := find_line()):
                atexit.register(_show_again, line)  # by then Prefect sends no more signs of life
    request.raise_if_requested()


def find_suspension() -> str | None:
    """Who asked the step to end, in words, if the flow run was suspended since it began."""
    request = _watched.get()
    return "The flow run was suspended in Prefect." if request is not None and request.is_requested() else None


def find_pause(run_paths: RunPaths) -> str | None:
    """Why a tick of a schedule leaves a run alone, in words: a person has paused the flow run that trained it last.

    None for a flow run that a person has asked for, and where store or server do not answer: neither is waited for.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or not context.flow_run.auto_scheduled or find_own() is None:
        return None
    try:
        ids = _find_last(run_paths)
        with impatient_client() as client:
            paused = find_wish(client, ids, [StateType.PAUSED])
    except (StoreError, httpx.HTTPError, PrefectException):
        return None
    if paused is None:
        return None
    return (
        f"A person has paused run {run_paths.manifest.run!r}, by its flow run {paused.name}. Press *Resume* there, or "
        "*Cancel*, after which the schedule goes on with the run."
    )


def _find_last(run_paths: RunPaths) -> list[UUID]:
    """The deployed flow run in which the last segment was begun, if that is over; at most one.

    Not those within it: they are shown as suspended until the one around it, which was resumed, begins them again.
    """
    head = run_paths.manifest.find_head()
    if head is None or head.state.lease is not None or not head.state.segments:
        return []
    fence = head.state.segments[-1].fence
    return [UUID(id) for id in find_flow_runs(run_paths.store, run_paths.manifest.run, fence)[-1:]]


def _show_again(line: Sequence[FlowRun]) -> None:
    for left in reversed(range(NUM_TRIES)):
        try:
            call_suspended(line)
            return
        except (httpx.HTTPError, PrefectException):
            if left:
                time.sleep(PAUSE_SECONDS)  # a server does not signal that it answers again
