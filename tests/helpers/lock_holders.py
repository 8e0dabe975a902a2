"""Processes that hold a rank's lock, as a rank does that works in a folder, and do nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.fault_plans import ROOT

HOLD = """
import sys, time
from pathlib import Path
from training.agents.locks import hold_lock, rank_lock
lock = hold_lock(rank_lock(Path(sys.argv[1]), 0))
print("held", flush=True)
time.sleep(600)
"""


def start_holding(folder: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock of rank 0 in this folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@contextmanager
def holding(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Such a process for the block."""
    process = start_holding(folder)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
