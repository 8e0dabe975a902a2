"""A command that is asked to end leaves as an exit, and no part of what it wrote."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.results import ending_in_order
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
