"""Holdfast as a child process of the user's: started, waited for, stopped with its parent; its result read as JSON.

Invariant: nothing of Holdfast outlives the call, however it is left, and it has the time to save. The child imports
this installation, whatever the user's folders are called.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The environment variable by which a child knows that it is to end with this process, whose number it has.
PARENT = "HOLDFAST_PARENT"
STANDARD_ERROR = 2
# What the child has written by its end is shown within them; a process that it left may hold the pipe open.
LAST_LINES_SECONDS = 5.0


class HoldfastError(Exception):
    """A command of Holdfast's did not do what it was asked to do.

    The text is the command's own message: what was expected, what was found, where, and what to do. `kind` is the name
    of the error, for instance ConfigurationError or RunBusyError, and empty where the process ended without a message.
    `exit_code` is the command's: 1 a failure, 2 something for you to correct, 128 plus the signal when it was stopped;
    negative, the number of the signal that killed it.
    """

    def __init__(self, message: str, kind: str, exit_code: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code


def call(
    command: str,
    arguments: Sequence[object],
    settings: Mapping[str, object] | None = None,
    folders: Sequence[str] = (),
) -> dict[str, Any]:
    """Run `holdfast COMMAND ARGUMENTS --json`; what it prints. Raises `HoldfastError`, and `KeyboardInterrupt`.

    `settings` are fields of the configuration by their dotted names, as `--set` takes them; in `folders` the command
    finds packages of the user's besides. What it shows is on this process's stderr, in a notebook in the cell.
    """
    line = [command, *map(str, arguments), "--json"]
    for field, value in (settings or {}).items():
        line += ["--set", f"{field}={write_value(value)}"]
    with tempfile.TemporaryFile() as printed:  # not a pipe, of which an interrupted reading would lose a part
        line = [sys.executable, "-m", "holdfast.child_command", *line]
        exit_code = _run(line, printed.fileno(), _environment(folders))
        printed.seek(0)
        text = printed.read().decode()
    found = _read(text)
    if found is None:
        raise HoldfastError(
            f"`holdfast {command}` {_describe_end(exit_code)} without a result. Its stderr has the reason.",
            "", exit_code,
        )  # fmt: skip
    if "error" in found:
        raise HoldfastError(found["error"]["message"], found["error"]["kind"], exit_code)
    return found


def write_value(value: object) -> str:
    """A value of Python's as `--set` reads it: text as it is, a path too, all else as TOML writes it."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_quoted(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    return json.dumps(value)


def _quoted(value: object) -> str:
    return json.dumps(os.fspath(value)) if isinstance(value, str | os.PathLike) else write_value(value)


def _run(line: Sequence[str], stdout: int, environment: Mapping[str, str]) -> int:
    """The exit code of a child that ends with this process, and in good order when this one is interrupted."""
    is_shown_elsewhere = not _is_standard_error(sys.stderr)
    child = subprocess.Popen(
        line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE if is_shown_elsewhere else None,
        process_group=0,  # Ctrl-C reaches this process alone, which passes it on once
    )
    showing = threading.Thread(target=_show, args=(child.stderr, sys.stderr), daemon=True)
    if is_shown_elsewhere:
        showing.start()
    try:
        return _wait(child)
    finally:
        if is_shown_elsewhere:
            showing.join(LAST_LINES_SECONDS)


def _is_standard_error(stream: Any) -> bool:
    """Not where a notebook, for one, has put something in its place that shows what is written to it."""
    try:
        return bool(stream.fileno() == STANDARD_ERROR)
    except (AttributeError, OSError, ValueError):
        return False


def _show(lines: Any, stream: Any) -> None:
    """Until the child has closed its end."""
    for line in lines:
        stream.write(line.decode(errors="replace"))
        stream.flush()


def _wait(child: "subprocess.Popen[bytes]") -> int:
    is_interrupted = False
    while True:
        try:
            exit_code = child.wait()
            break
        except KeyboardInterrupt:  # each is passed on: the second one kills the ranks
            is_interrupted = True
            child.send_signal(signal.SIGINT)
        except BaseException:  # for instance of a signal's handler in the user's program
            child.send_signal(signal.SIGTERM)
            child.wait()
            raise
    if is_interrupted:
        raise KeyboardInterrupt
    return exit_code


def _environment(folders: Sequence[str]) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), *folders])
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path, PARENT: str(os.getpid())}


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _describe_end(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
