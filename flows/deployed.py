"""What the flows behind the deployments have in common.

Invariant: the composition is `flows.train` alone; what is deployed only says which configuration it gets and how far it
goes.
"""

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.status import describe_state
from flows.train import train_with_retries
from tasks.configuration import RunConfig


def train_deployed(config: RunConfig, max_segments: int | None) -> State[None]:
    """Train; the final state of the flow run, which says in the UI's list where the run stands."""
    state = train_with_retries(config, max_segments)
    step = state.promoted.step if state.promoted else 0
    return Completed(message=f"{state.run}: {describe_state(state)}, step {step:,} of {state.steps_total:,}")


def with_budget(config: RunConfig, seconds: float | None) -> RunConfig:
    """The configuration with another time budget for a segment; None is no limit."""
    return config.model_copy(update={"segment": config.segment.model_copy(update={"seconds": seconds})})
