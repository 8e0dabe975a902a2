"""Of ranks that a signal ended the segment's cause tells, by torchrun's own words."""

from pathlib import Path

import pytest
from tasks.cluster.killed_ranks import LAST_BYTES, describe_killed_ranks

# As torchrun of torch 2.13 prints it. `faults/test_interruptions.py` has it print the like.
SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
training.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_14:26:48
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {other} (pid: 25559) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_14:26:48
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {first} (pid: 25558)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 25558
============================================================
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "ranks.log"


def test_the_rank_that_was_killed_is_named_and_not_the_one_that_failed_since_it_was_gone(log: Path) -> None:
    log.write_text("rank 1: the connection broke\n" * LAST_BYTES + SUMMARY.format(first=-9, other=1))
    said = describe_killed_ranks(log)
    assert said is not None
    assert said.startswith("Rank 0 (process 25558) was killed with SIGKILL: by a person, or by the kernel when")
    assert "Rank 1" not in said


def test_all_that_were_killed_are_named_in_the_order_of_ranks(log: Path) -> None:
    log.write_text(SUMMARY.format(first=-11, other=-40))
    said = describe_killed_ranks(log)
    assert said is not None
    assert said.startswith("Rank 0 (process 25558) was killed with SIGSEGV: it read memory")
    assert said.endswith("Rank 1 (process 25559) was killed with signal 40.")


@pytest.mark.parametrize("text", ["", SUMMARY.format(first=1, other=1), "rank 0: exitcode  : -9 (pid: 1)\n"])
def test_where_no_rank_was_killed_nothing_is_said(text: str, log: Path) -> None:
    log.write_text(text)
    assert describe_killed_ranks(log) is None


def test_without_a_log_nothing_is_said(log: Path) -> None:
    assert describe_killed_ranks(log) is None
