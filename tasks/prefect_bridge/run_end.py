"""Alert that an error ended a run that a person has to look at. That one is complete the reconciler tells.

Invariant: an error that Prefect answers by another attempt raises none, nor does a run that another process trains or
that a user stopped, nor a store that is away when a flow run begins: other processes may train the run, each tick of
its schedule would tell it again, and the reconciler tells it once. The words are on the terminal and in the flow run's
final state anyway, so none goes to the log.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import FlowRunContext

from storage.errors import HoldfastError, RunBusyError, RunStoppedError, SegmentFailedError, StoreUnavailableError
from storage.objects.addresses import run_address
from tasks.configuration.run import RunConfig
from tasks.prefect_bridge.alerts import RUN_ENDED, send
from tasks.run_paths import open_run_paths


@contextmanager
def reporting_errors(config: RunConfig) -> Iterator[None]:
    """Send an alert for the error that ends the block, unless another attempt follows."""
    try:
        yield
    except (RunBusyError, RunStoppedError):
        raise
    except Exception as error:
        if not _is_tried_again(error) and not _is_store_away_at_start(error):
            message = f"Run {config.run!r} ended with an error that a person has to look at: {error}"
            kind = type(error).__name__
            send(RUN_ENDED, _address(config), message, run=config.run, outcome="error", error=kind)
        raise


def _is_tried_again(error: Exception) -> bool:
    """Whether the current flow run has an attempt left, and the error is none that a person has to put right."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return False
    is_for_a_person = isinstance(error, HoldfastError) and not isinstance(error, SegmentFailedError)
    return not is_for_a_person and context.flow_run.run_count <= (context.flow.retries or 0)


def _is_store_away_at_start(error: Exception) -> bool:
    """Whether the store did not answer, and nothing that needs it was under way, for which it would be waited for."""
    return type(error) is StoreUnavailableError and not error.was_waited_for


def _address(config: RunConfig) -> str:
    try:
        return run_address(open_run_paths(config).store, config.run)
    except HoldfastError:  # the store's address may be what the error is about
        return config.run
