"""Signals do not interrupt work, and are raised after it."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from prefect.utilities.engine import can_ack_control_intent, capture_sigterm

from tasks.preemption.signals import StopRequest, run_to_end


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
