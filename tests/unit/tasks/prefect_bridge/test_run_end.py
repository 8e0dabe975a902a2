"""Whoever is on call hears which error ended a run; and nothing of what is no end."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events.schemas.events import Event

from storage.errors import (
    ConfigurationError,
    HoldfastError,
    LedgerViolationError,
    RunBusyError,
    RunDivergedError,
    RunStoppedError,
    SegmentFailedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from tasks.configuration.run import DataConfig, RetryConfig, RunConfig
from tasks.prefect_bridge.alerts import RUN_ENDED
from tasks.prefect_bridge.run_end import reporting_errors
from tasks.retrying import Retry

Told = Callable[[], list[Event]]
CONFIG = RunConfig(run="run", store="/mnt/store", data=DataConfig(text="t", label="l", kind="binary"))
RETRIES = 3


@flow(retries=RETRIES)
def nothing() -> None:
    """What is tried again so often."""


def in_attempt(number: int) -> Any:
    """The context of a flow run that is tried again so often."""
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), run_count=number)
    return FlowRunContext.model_construct(flow_run=flow_run, flow=nothing)  # type: ignore[call-arg]


def fail_in_attempt(number: int, error: BaseException) -> None:
    with in_attempt(number), pytest.raises(type(error)), reporting_errors(CONFIG):
        raise error


@pytest.mark.parametrize("kind", [ConfigurationError, RunDivergedError, LedgerViolationError])
def test_an_error_that_a_person_has_to_put_right_ends_the_run_at_once(kind: type[HoldfastError], told: Told) -> None:
    fail_in_attempt(1, kind("The data have no column 'text'."))
    (event,) = told()
    assert (event.event, event.resource.id) == (RUN_ENDED, "holdfast./mnt/store/runs/run")
    assert event.payload == {
        "message": "Run 'run' ended with an error that a person has to look at: The data have no column 'text'.",
        "run": "run",
        "outcome": "error",
        "error": kind.__name__,
    }


@pytest.mark.parametrize("error", [SegmentFailedError("Segment 2 ended as lost."), ZeroDivisionError("ours")])
def test_an_error_that_is_tried_again_is_told_after_the_last_attempt(error: Exception, told: Told) -> None:
    for number in range(1, RETRIES + 1):
        fail_in_attempt(number, error)
    assert told() == []
    fail_in_attempt(RETRIES + 1, error)
    (event,) = told()
    assert str(error) in event.payload["message"]


@pytest.mark.parametrize("error", [RunBusyError("trained elsewhere"), RunStoppedError("asked"), SystemExit(143)])
def test_a_run_that_another_process_trains_or_that_was_stopped_has_not_ended(error: BaseException, told: Told) -> None:
    fail_in_attempt(RETRIES + 1, error)
    assert told() == []


def test_a_store_that_is_away_when_a_flow_run_begins_is_told_by_the_reconciler_alone(told: Told) -> None:
    def is_away() -> None:
        raise StoreUnavailableError("Cannot reach the store.")

    with pytest.raises(StoreUnavailableError), reporting_errors(CONFIG):
        is_away()
    assert told() == []
    with pytest.raises(StoreUnavailableError), reporting_errors(CONFIG):
        Retry(RetryConfig(store_seconds=0)).call("Settling segment 2", is_away)
    fail_in_attempt(1, StoreRefusedError("403 AccessDenied"))
    assert [event.payload["error"] for event in told()] == ["StoreUnavailableError", "StoreRefusedError"]


def test_an_address_that_is_the_mistake_is_no_second_error(told: Told) -> None:
    elsewhere = CONFIG.model_copy(update={"store": "gs://bucket"})
    with pytest.raises(ConfigurationError), reporting_errors(elsewhere):
        raise ConfigurationError("store = 'gs://bucket': expected s3://bucket/prefix")
    (event,) = told()
    assert event.resource.id == "holdfast.run"
