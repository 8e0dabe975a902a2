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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The environment variable by which a child knows that it is to end with this process, whose number it has.
PARENT = "HOLDFAST_PARENT"


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


def call(command: str, arguments: Sequence[object], settings: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Run `holdfast COMMAND ARGUMENTS --json`; what it prints. Raises `HoldfastError`, and `KeyboardInterrupt`.

    `settings` are fields of the configuration by their dotted names, as `--set` takes them.
    """
    line = [command, *map(str, arguments), "--json"]
    for field, value in (settings or {}).items():
        line += ["--set", f"{field}={write_value(value)}"]
    with tempfile.TemporaryFile() as printed:  # not a pipe, of which an interrupted reading would lose a part
        exit_code = _run([sys.executable, "-m", "holdfast.child_command", *line], printed.fileno())
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


def _run(line: Sequence[str], stdout: int) -> int:
    """The exit code of a child that ends with this process, and in good order when this one is interrupted."""
    child = subprocess.Popen(
        line,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        process_group=0,  # Ctrl-C reaches this process alone, which passes it on once
    )
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


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path, PARENT: str(os.getpid())}


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _describe_end(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
