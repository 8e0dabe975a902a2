"""The process in which Great Expectations judges: it is needed for nothing else, and never outlives who asked."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tasks.data.contract import judge_process
from tasks.data.contract.judge_process import dismiss_judge, judge, load_judge

LONGEST_SECONDS = 60
ASKED = [("ExpectColumnValuesToBeBetween", "rows", {"min_value": 0, "max_value": 0})]
DIES = """
import os, signal, sys
from tasks.data.contract import judge_process
judge_process.load_judge()
print(judge_process._running.process.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One of this test's own."""
    dismiss_judge()
    load_judge()
    assert judge_process._running is not None
    yield judge_process._running.process
    dismiss_judge()


def test_it_says_which_rows_break_what_is_expected(process: subprocess.Popen[bytes]) -> None:
    found = judge({"file_index": [3, 4, 5], "rows": [0, 2, 0]}, ASKED, "file_index")
    (failure,) = found.failures
    assert (failure.index, failure.column, failure.count) == (0, "rows", 1)
    assert [row["file_index"] for row in failure.rows] == [4]
    assert judge({"rows": [0, 0]}, ASKED).failures == []
    assert process.poll() is None
    with pytest.raises(RuntimeError, match="no_such_column"):
        judge({"rows": [0]}, [("ExpectColumnValuesToNotBeNull", "no_such_column", {})])


def test_when_it_was_killed_another_one_answers(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert judge({"rows": [0]}, ASKED).failures == []
    assert judge_process._running is not None and judge_process._running.process is not process


def test_it_ends_while_it_loads_with_the_process_that_started_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", DIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert parent.stdin is not None and parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.communicate("\n", timeout=LONGEST_SECONDS)
    deadline = time.monotonic() + LONGEST_SECONDS
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)  # it says to nobody that it ends
