"""A command whose stderr cannot be written goes on; a result that cannot be written is an error."""

import os
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
print("done", "a" if sys.stderr is None else sys.stderr.isatty())
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


@pytest.mark.parametrize("command", [["runs"], ["runs", "--json"]])
def test_a_result_that_cannot_be_written_is_one_error(tmp_path: Path, command: list[str]) -> None:
    make_run(LocalStore(tmp_path))
    with Path("/dev/full").open("w") as full:
        done = run("-m", "flows.cli", *command, str(tmp_path), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The result could not be written to standard output: No space left on device.")
    assert done.stderr.count("\n") == 1


def test_a_help_that_cannot_be_written_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        assert run("-m", "flows.cli", "runs", "--help", stdout=full, stderr=subprocess.DEVNULL).returncode == 1
