"""A command that is asked to end leaves as an exit, and no part of what it wrote."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.commands.results import ending_in_order, leave_on_signals
from storage.folders import write_file, write_folder


def ask_to_end(path: Path) -> None:
    (path / "part" if path.is_dir() else path).write_text("half of it")
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_sigterm_leaves_no_part_of_a_result_and_the_handler_that_was_there(
    write: Callable[..., None], tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, ending_in_order():
        write(tmp_path / "out", ask_to_end)
    assert end.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_has_the_exit_code_of_its_signal() -> None:
    with pytest.raises(SystemExit) as end, ending_in_order():
        signal.raise_signal(signal.SIGINT)
    assert end.value.code == 128 + signal.SIGINT


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The handlers of before come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_a_terminal_that_is_closed_ends_a_run_as_sigterm_does_whoever_handles_that() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    leave_on_signals()
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(signal.SIGHUP)
    assert end.value.code == 128 + signal.SIGTERM
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    leave_on_signals()
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))  # as Prefect does around a flow
    for _ in range(3):  # as of a terminal with a shell
        signal.raise_signal(signal.SIGHUP)
    assert heard == [signal.SIGTERM]


@pytest.mark.usefixtures("own_signals")
def test_a_run_that_was_told_to_outlive_its_terminal_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_on_signals()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
