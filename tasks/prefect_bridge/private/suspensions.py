"""The request by which Prefect's engines learn that a user has suspended the flow run that they are in."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect._flow_run_suspension import FlowRunSuspensionRequest
from prefect.context import FlowRunContext

USES = (
    "prefect._flow_run_suspension.FlowRunSuspensionRequest",
    "prefect.context.FlowRunContext.flow_run_suspension_request",
    "prefect.context.FlowRunContext.model_copy",
)

SuspensionRequest = FlowRunSuspensionRequest


@contextmanager
def hidden_suspension(context: FlowRunContext) -> Iterator[SuspensionRequest]:
    """Around a step: within, Prefect's engines see no suspension of this flow run. Yields the request that is hidden.

    `is_requested` says whether the flow run was suspended, `raise_if_requested` raises what then ends it. Uses
    `FlowRunContext.flow_run_suspension_request` and a copy of that context. Prefect has nothing public that puts a
    suspension off to the end of a task. Without it a step is broken off where the next one within it begins or ends,
    between writes that belong together.
    """
    request = context.flow_run_suspension_request
    with context.model_copy(update={"flow_run_suspension_request": FlowRunSuspensionRequest()}):
        yield request
