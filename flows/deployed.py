"""What the flows behind the deployments have in common.

Invariant: the composition is `flows.train` alone; what is deployed only says which configuration it gets and how far it
goes. In the UI's list each flow run says in one sentence how it ended.
"""

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.commands.status import describe_state
from flows.train import train_with_retries
from storage.errors import HoldfastError
from tasks.configuration import RunConfig


def train_deployed(config: RunConfig, max_segments: int | None) -> State[None]:
    """Train; the final state of the flow run, which says where the trained run stands."""
    state = train_with_retries(config, max_segments)
    step = state.promoted.step if state.promoted else 0
    return Completed(message=f"{state.run}: {describe_state(state)}, step {step:,} of {state.steps_total:,}")


def describe_failure(error: HoldfastError) -> State[None]:
    """The final state of a flow run that failed: the message, which is written for people, and no traceback."""
    return Failed(message=str(error))


def with_budget(config: RunConfig, seconds: float | None) -> RunConfig:
    """The configuration with another time budget for a segment; None is no limit."""
    return config.model_copy(update={"segment": config.segment.model_copy(update={"seconds": seconds})})
