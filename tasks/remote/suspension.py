"""A flow run that somebody suspends in Prefect while a step works.

Prefect's engine then raises `Pause` where the next step begins or ends, which may be within another step, between two
writes that belong together. Invariant: a step is not broken off. It is told, ends by itself, and has a state that says
so; only then the flow run is left, to be begun again by *Resume*.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect.context import FlowRunContext

# What Prefect's engine watches the server for; None outside of a step.
_watched: ContextVar[Any] = ContextVar("watched", default=None)


@contextmanager
def ended_before_suspension() -> Iterator[None]:
    """Around a step: within, Prefect's engine sees no suspension; it does again at the block's end."""
    context = FlowRunContext.get()
    if context is None or _watched.get() is not None:
        yield
        return
    request = context.flow_run_suspension_request
    token = _watched.set(request)
    try:
        with context.model_copy(update={"flow_run_suspension_request": type(request)()}):
            yield
    finally:
        _watched.reset(token)
    request.raise_if_requested()


def find_suspension() -> str | None:
    """Who asked the step to end, in words, if the flow run was suspended since it began."""
    request = _watched.get()
    return "The flow run was suspended in Prefect." if request is not None and request.is_requested() else None
