"""A command whose output cannot be written goes on, and ends with an error; without one where nobody reads it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.commands import ROOT
from tests.helpers.runs import make_run

TALK = """
import logging, sys
from flows.commands.results import print_progress
from tasks.console.announce import warn
from tasks.console.messages import show_messages
from tasks.console.terminal import console, lose_what_cannot_be_shown
lose_what_cannot_be_shown()
show_messages()
for number in range(2000):
    print_progress(f"line {number}")
    console.print(f"line {number}")
    warn(f"line {number}")
print("done", sys.stderr.isatty())
"""


PRINT = """
import sys
from tasks.console.terminal import lose_what_cannot_be_shown
lose_what_cannot_be_shown()
for number in range(10_000):
    print(f"line {number}")
sys.stdout.flush()
print("done", file=sys.stderr)
"""


def run(*line: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *line], cwd=ROOT, text=True, check=False, **streams)


def test_nothing_ends_because_stderr_is_on_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("-c", TALK, stdout=subprocess.PIPE, stderr=full)
    assert (done.returncode, done.stdout) == (0, "done False\n")


@pytest.mark.parametrize("is_closed_first", [False, True])
def test_nothing_ends_because_nobody_reads_stderr_any_more(is_closed_first: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = ["-c", TALK]
    if is_closed_first:  # as with `2>&-`
        line = ["-c", f"import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, '-c', {TALK!r}])"]
    done = run(*line, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "done False\n")


@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_printed_on_the_way_ends_nothing_though_stdout_cannot_be_written(is_full: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    if is_full:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer)
        os.close(full)
    done = run("-c", PRINT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "done\n")


def run_unread(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command whose stdout nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run("-m", "flows.cli", *arguments, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    return done


COMMANDS = [["runs"], ["runs", "--json"]]
FULL = "Error: What the command printed could not be written to standard output: No space left on device."


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_that_cannot_be_written_is_one_error(tmp_path: Path, command: list[str]) -> None:
    make_run(LocalStore(tmp_path))
    with Path("/dev/full").open("w") as full:
        done = run("-m", "flows.cli", *command, str(tmp_path), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith(FULL) and done.stderr.count("\n") == 1


def test_a_help_that_cannot_be_written_is_one_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("-m", "flows.cli", "runs", "--help", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith(FULL) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_that_nobody_reads_ends_without_a_message(tmp_path: Path, command: list[str]) -> None:
    make_run(LocalStore(tmp_path))
    done = run_unread(*command, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_help_that_nobody_reads_ends_without_a_message() -> None:
    done = run_unread("runs", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_has_its_message_and_its_code_though_nobody_reads_stdout(tmp_path: Path) -> None:
    done = run_unread("status", str(tmp_path / "none"), "--json")
    assert done.returncode == 2 and done.stderr.startswith("Error: ")


def test_who_follows_lines_ends_when_nobody_reads_them_any_more(tmp_path: Path) -> None:
    make_run(LocalStore(tmp_path))
    assert run_unread("status", f"{tmp_path}/runs/run", "--watch").returncode == 128 + signal.SIGPIPE
