"""What the commands print, and how one ends that is asked to, by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import RenderableType

from storage.errors import ResultUnwrittenError
from tasks.console.terminal import find_loss, print_content


def print_progress(text: str) -> None:
    """Print a line on stderr, now."""
    print(text, file=sys.stderr, flush=True)


def print_result(found: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], RenderableType]) -> None:
    """Print a command's result on stdout: as JSON, or as `render` shows it to a person; text is printed as it is.

    Raises as `require_written`.
    """
    shown = json.dumps(found, indent=2) if as_json else render(found)
    if isinstance(shown, str):
        print(shown)
    else:
        print_content(shown)
    require_written()


def require_written() -> None:
    """Raise `ResultUnwrittenError` if something that was printed on stdout could not be written.

    Where whoever read it has gone, as `head` does, it has what it wanted: the exit code still says how the work ended.
    """
    loss = find_loss()
    if loss is not None and not isinstance(loss, BrokenPipeError):
        raise ResultUnwrittenError(
            f"What the command printed could not be written to standard output: {loss.strerror or loss}. What it was "
            "to do is done."
        ) from loss


def require_reader() -> None:
    """As `require_written`; and who prints until somebody stops it ends as SIGPIPE would end it when nobody reads."""
    require_written()
    if find_loss() is not None:
        sys.exit(128 + signal.SIGPIPE)


def print_error_as_json(kind: str, message: str) -> None:
    """Print on stdout, for a program, why there is no result; a person has it on stderr."""
    print(json.dumps({"error": {"kind": kind, "message": message}}))


class CommandStopped(SystemExit):
    """The end of a command that was asked to stop, with the exit code 128 plus the signal and what goes on with it."""

    code: int

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(exit_code)
        self.message = message


def exit_code_of(stop: KeyboardInterrupt | SystemExit) -> int:
    """The exit code of a command that one of the two ends: 128 plus the signal."""
    return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 128 + signal.SIGINT


def this_command() -> str:
    """The command that this process runs, as it can be typed again."""
    return shlex.join(["holdfast", *sys.argv[1:]])


def leave_on_signals() -> None:
    """From now on SIGTERM is an exit, which lets everything be put away, and the end of the terminal is as SIGTERM.

    What has another handler for SIGTERM, such as Prefect, then hears of a closed terminal, too. A command that was told
    to outlive its terminal (`nohup`) does.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _leave_as_on_sigterm)


def _leave_as_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Once: of one terminal that is closed the kernel tells, its shell, and the kernel again when that has ended."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """A block that either signal leaves as an exit with code 128 plus its number, so that everything is put away.

    By default SIGTERM, as a service or a scheduler sends it, would end the process on the spot.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
