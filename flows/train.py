"""The main flow: prepare, recover, train segments until done, evaluate, audit, compare with a baseline, report.

Invariant: the resume point is read from the manifest on every attempt and never handed in, so that a retry, a new
process and another machine all go on from the same checkpoint.
"""

from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed

from storage.datasets import DatasetManifest
from storage.errors import (
    HoldfastError,
    LedgerViolationError,
    QualityGateError,
    RunBusyError,
    RunDivergedError,
    RunHandedOverError,
    RunStoppedError,
    SegmentFailedError,
)
from storage.runs.run_state import RunState
from tasks.audit import audit_ledger
from tasks.baseline import compare_with_baseline
from tasks.config.changes import as_begun
from tasks.config.overrides import with_overrides
from tasks.configuration.run import RunConfig
from tasks.console.announce import warn
from tasks.evaluate import evaluate_run
from tasks.prefect_bridge.final_errors import never_retry

# It loads what Prefect else loads at the first call of a flow and of a task: here it is while a local server starts.
from tasks.prefect_bridge.flow_runs import SKIPPED
from tasks.prefect_bridge.private.engines import abandoned
from tasks.prefect_bridge.returned import call_through_prefect, current_call
from tasks.prefect_bridge.run_end import reporting_errors
from tasks.prefect_bridge.server import send_all
from tasks.prepare import prepare_data
from tasks.recover import recover
from tasks.recovery.progress_check import require_progress
from tasks.report import leave_report, publish_report
from tasks.run_paths import open_run_paths
from tasks.segment import train_segment
from tasks.supervision.launch import require_launchable
from tasks.tracking.required import require_tracking
from tasks.tracking.run_end import sending_the_rest


@flow(name="train", flow_run_name="{config.run}", retries=3, retry_delay_seconds=5, persist_result=False)
def train(config: RunConfig, max_segments: int | None = None) -> State[None]:
    """Train a run to its end, or for `max_segments` segments that end in good order.

    Started again, in whatever way, it goes on from the promoted checkpoint. The flow run is cancelled where a user
    asked for its end, and skipped where another process trains the run.
    """
    returned = current_call()
    with returned.noting_errors():
        try:
            rest = sending_the_rest(config.tracking, lambda: open_run_paths(config).store, config.run, warn)
            with reporting_errors(config), rest:
                state = _train(config, max_segments)
            send_all()
            returned.note(state)
            return Completed()
        except RunHandedOverError as handed_over:
            raise abandoned(str(handed_over)) from None  # Prefect's engine leaves the state to the process that goes on
        except RunStoppedError as stopped:
            send_all(why=str(stopped))
            returned.note_error(stopped)
            return Cancelled(message=str(stopped))
        except RunBusyError as busy:
            send_all(why=str(busy))
            returned.note_error(busy)
            return Completed(name=SKIPPED, message=str(busy))
        except HoldfastError as error:
            send_all(why=str(error))
            if not isinstance(error, SegmentFailedError):
                never_retry()  # what a person has to put right is not put right by trying again
            raise


def _train(config: RunConfig, max_segments: int | None) -> RunState:
    require_tracking(config.tracking)
    require_launchable(config)
    dataset = prepare_data(config)
    config = with_overrides(config)
    try:
        state = recover(config, dataset)
        config = as_begun(config, state)  # with what followed from the number of rows
        state = _train_segments(config, dataset, state, max_segments)
        if state.is_trained:
            evaluate_run(config)
            audit_ledger(config)
            if config.report.baseline:
                compare_with_baseline(config, dataset)
    except RunBusyError:
        raise  # the process that trains the run writes its page
    except (RunDivergedError, QualityGateError, LedgerViolationError):
        publish_report(config, dataset)  # nothing goes on by itself from here: the page has to show that
        raise
    except BaseException:
        leave_report(config, dataset)
        raise
    return publish_report(config, dataset)


def _train_segments(config: RunConfig, dataset: DatasetManifest, state: RunState, max_segments: int | None) -> RunState:
    while not state.is_trained and max_segments != 0:
        record = train_segment(config)
        state = recover(config, dataset)
        require_progress(config, record, state)
        if max_segments is not None and record.ended_well:
            max_segments -= 1
    return state


def train_with_retries(config: RunConfig, max_segments: int | None = None) -> RunState:
    """Call the flow with the retries that the configuration asks for.

    Raises what ended it, `RunStoppedError` and `RunBusyError` where it was cancelled or skipped.
    """
    retry = config.retry
    flow_with_retries = train.with_options(retries=retry.attempts, retry_delay_seconds=retry.delay_seconds)
    states: list[State[Any]] = []
    returned = call_through_prefect(lambda: states.append(flow_with_retries(config, max_segments, return_state=True)))
    return cast("RunState", returned.take()) if returned.is_known else _end_of_before(config, states[0])


def _end_of_before(config: RunConfig, state: State[Any]) -> RunState:
    """Where the run stands after a flow run that had ended before: Prefect does not call it again."""
    if state.is_completed() and state.name != SKIPPED:
        return open_run_paths(config).manifest.load_head().state
    if state.is_completed():
        raise RunBusyError(state.message)
    if state.is_cancelled():
        raise RunStoppedError(state.message)
    raise HoldfastError(f"Prefect did not begin the flow run train of {config.run}. Its state is {state}.")
