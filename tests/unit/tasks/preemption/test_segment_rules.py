"""When a run simply goes on, when trying again may help, and when only a person can."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from prefect.utilities.engine import can_ack_control_intent, capture_sigterm

from storage.errors import ConfigurationError, SegmentFailedError
from storage.runs.run_records import QuarantineRecord
from storage.runs.run_state import CheckpointRecord, RunState, SegmentRecord
from tasks.configuration.run import DataConfig, RunConfig, SegmentConfig
from tasks.preemption.signals import StopRequest, run_to_end
from tasks.recovery.progress_check import require_progress
from training.checkpointing.versions import describe_version_changes

CONFIG = RunConfig(run="r", data=DataConfig(text="t", label="l", kind="binary"), segment=SegmentConfig(seconds=5))


def segment(outcome: Any, first_step: int = 10, last_step: int = 30, is_final: bool = False) -> SegmentRecord:
    return SegmentRecord(
        fence=4, outcome=outcome, cause="why", first_step=first_step, last_step=last_step, world_size=1,
        planned_steps=1000, started_at=0,
        seconds=1, steps_lost=0, is_final=is_final, phases={},
    )  # fmt: skip


def state(step: int, segments: list[SegmentRecord], steps_total: int = 100) -> RunState:
    promoted = CheckpointRecord(
        step=step, path="p", digest="d", weights_sha256="w", num_bytes=1, fence=4, promoted_at=0
    )
    damaged = QuarantineRecord(step=steps_total, path="q", reason="tensor bias is not finite", quarantined_at=0)
    return RunState(
        run="r", created_at=0, config={}, dataset_digest="d",
        dataset_sha256="s" * 64, steps_total=steps_total, promoted=promoted,
        kept=[promoted], quarantined=[damaged], segments=segments,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", ["budget", "preempted", "failed", "lost", "diverged"])
def test_a_run_that_got_on_goes_on(outcome: str) -> None:
    record = segment(outcome)
    require_progress(CONFIG, record, state(20, [record]))  # raises where the run may not simply go on


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_segment_that_died_without_getting_on_is_tried_again(outcome: str) -> None:
    record = segment(outcome)
    with pytest.raises(SegmentFailedError, match=f"ended as {outcome}: why"):
        require_progress(CONFIG, record, state(10, [record]))


def test_a_mistake_that_a_rank_found_is_not_tried_again() -> None:
    record = segment("failed", is_final=True)
    with pytest.raises(ConfigurationError, match="could not run: why"):
        require_progress(CONFIG, record, state(20, [record]))


def test_a_last_checkpoint_that_was_rejected_is_an_error_with_its_reason() -> None:
    record = segment("completed", last_step=100)
    with pytest.raises(SegmentFailedError, match="tensor bias is not finite"):
        require_progress(CONFIG, record, state(80, [record]))


def test_a_budget_that_ends_before_the_first_step_is_an_error_and_no_endless_loop() -> None:
    record = segment("budget", first_step=10, last_step=10)
    with pytest.raises(ConfigurationError, match=r"segment.seconds = 5, before its first step"):
        require_progress(CONFIG, record, state(10, [record]))


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_signal_does_not_interrupt_the_work_and_is_raised_afterwards(fails: bool) -> None:
    told: list[str] = []

    def on_signal(_number: int, _frame: object) -> None:
        raise InterruptedError

    def work(request: StopRequest) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: request.is_made)
        told.append("the work goes on")
        os.kill(os.getpid(), signal.SIGTERM)  # whoever is impatient does not interrupt it either
        wait_for(lambda: len(request.exceptions) == 2)
        told.append("to its end")
        if fails:
            raise ValueError("something else went wrong too")
        return "done"

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        with pytest.raises(InterruptedError):
            run_to_end(work)
        assert signal.getsignal(signal.SIGTERM) is on_signal
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["the work goes on", "to its end"]


def test_prefects_own_handler_stays_so_that_a_cancel_is_acknowledged() -> None:
    with capture_sigterm():
        assert run_to_end(lambda _request: can_ack_control_intent())


def test_work_that_nobody_stops_gives_what_it_returns_or_raises() -> None:
    assert run_to_end(lambda request: request.is_made) is False
    with pytest.raises(ZeroDivisionError):
        run_to_end(lambda _request: 1 // 0)


def test_ctrl_c_stays_ignored_where_it_was_as_in_the_background_of_a_script() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work(request: StopRequest) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return request.is_made

    try:
        assert run_to_end(work) is False
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the main thread has got its signal."""
    while not condition():
        time.sleep(0.001)  # in the thread that signals: the main thread's handler sets a flag and wakes nobody


def test_a_changed_library_is_said_and_an_unchanged_one_is_not() -> None:
    made_with = {"torch": "2.12.0", "device": "cpu AVX2"}
    assert describe_version_changes(made_with, dict(made_with)) is None
    said = describe_version_changes(made_with, {"torch": "2.13.0", "device": "cpu AVX2"})
    assert said is not None
    assert "torch was 2.12.0, is 2.13.0 now" in said
    assert "cpu" not in said
