"""A process of a flow run prints no page about leaks at its end, and keeps its exit code."""

import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT

# What a flow run leaves behind: a task of Prefect's loop that has all of the context in which it was begun.
PROGRAM = """
import asyncio, contextvars, sys

import duckdb
from prefect._internal.concurrency.api import create_call
from prefect._internal.concurrency.threads import get_global_loop, get_run_sync_loop

{first}
in_hand = contextvars.ContextVar("in_hand")
in_hand.set(duckdb.connect())
for loop in (get_global_loop(), get_run_sync_loop()):
    loop.submit(create_call(asyncio.sleep, 1000))
sys.exit(3)
"""
END_LOOPS = "from tasks.prefect_bridge.private.process_end import end_loops_at_exit; end_loops_at_exit()"


def run_program(first: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_what_tasks_of_prefects_loops_refer_to_is_given_back_before_the_end() -> None:
    without, ended = run_program(""), run_program(END_LOOPS)
    assert "nanobind: leaked" in without.stderr  # else there is nothing to end any more
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")


@pytest.mark.parametrize("code", [0, 1])
def test_a_process_that_had_no_loop_ends_as_ever_and_begins_none(code: int) -> None:
    program = f"{END_LOOPS}\nimport sys, threading; print(threading.active_count()); sys.exit({code})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (code, "1\n", "")
