"""What the flows behind the deployments have in common.

Invariant: the composition is `flows.train` alone; what is deployed only sets which configuration it gets and how far it
goes. In the UI's list each flow run has one sentence on how it ended.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec

from prefect import tags
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.train import train_with_retries
from storage.errors import ConfigurationError, HoldfastError, RunBusyError, RunStoppedError
from storage.objects.store import Store
from storage.runs.addresses import find_target
from storage.runs.manifest import find_runs
from tasks.cluster.agents import keeping_agent
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.prefect_bridge.flow_runs import SKIPPED
from tasks.prefect_bridge.run_deployments import TAG
from tasks.prefect_bridge.server import send_all
from tasks.reporting.status import describe_state
from tasks.run_paths import open_run_paths
from tasks.text import how_far

Parameters = ParamSpec("Parameters")


def train_deployed(config: RunConfig, max_segments: int | None) -> State[None]:
    """Train; the final state of the flow run, with where the trained run stands.

    It is skipped where another process trains the run, and cancelled where its end was requested.
    """
    try:
        agent = keeping_agent(config.cluster, config.train, config.model, is_likely=_will_train(config))
        with tags(TAG, *flow_run.tags), agent:  # of what `train` tells, the team is told by the deployment's tags
            state = train_with_retries(config, max_segments)
    except RunBusyError as busy:
        return describe_skip(busy)
    except RunStoppedError as stopped:
        return Cancelled(message=str(stopped))
    step = state.promoted.step if state.promoted else 0
    return Completed(message=f"{state.run}: {describe_state(state)}, {how_far(step, state)}")


def _will_train(config: RunConfig) -> bool:
    """Whether ranks are likely to be started: not for a run that is complete, nor for one that somebody holds.

    Most ticks of a schedule find one of the two, and an agent would load the libraries of training for nothing.
    """
    try:
        head = open_run_paths(config).manifest.find_head()
    except HoldfastError:
        return True  # whoever takes the run up meets it again
    return head is None or (head.state.lease is None and not head.state.is_complete)


def describe_skip(busy: RunBusyError) -> State[None]:
    """The final state of a flow run that left its run to the process that trains it."""
    announce(f"Skipped: {busy}")
    return Completed(name=SKIPPED, message=str(busy))


def describe_failure(error: HoldfastError) -> State[None]:
    """The final state of a flow run that failed: the message, which is written for people, and no traceback."""
    return Failed(message=str(error))


def ending_in_one_sentence(flow_function: Callable[Parameters, State[None]]) -> Callable[Parameters, State[None]]:
    """The function of a flow other than `train`, which ends with its result or, by a `HoldfastError`, with its message.

    It ends once the server has its end: that may be away just now.
    """

    @functools.wraps(flow_function)
    def ending(*arguments: Parameters.args, **named: Parameters.kwargs) -> State[None]:
        try:
            state = flow_function(*arguments, **named)
        except HoldfastError as error:
            state = describe_failure(error)
        send_all(why=state.message or "")
        return state

    return ending


def find_named_run(address: str) -> tuple[Store, str]:
    """The run that an address names. Raises `RunMissingError`, and `ConfigurationError` if it names a whole store."""
    store, run = find_target(address)
    if run is None:
        runs = ", ".join(find_runs(store)) or "none"
        raise ConfigurationError(
            f"{address!r} is a store. Give the address of a run, STORE/runs/NAME. Its runs: {runs}."
        )
    return store, run


def with_budget(config: RunConfig, seconds: float | None) -> RunConfig:
    """The configuration with another time budget for a segment; None is no limit."""
    return config.model_copy(update={"segment": config.segment.model_copy(update={"seconds": seconds})})
