"""The helper that starts a real S3 server keeps what it promises. A whole run over it: `test_store_gone.py`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ceph_server
from tests.helpers.ceph_server import running_ceph_server
from tests.helpers.commands import ROOT, processes_mentioning

WAITS_FOREVER = """
import sys, time
from pathlib import Path
from tests.helpers.ceph_server import running_ceph_server

with running_ceph_server(Path(sys.argv[1])) as endpoint:
    print(endpoint, flush=True)
    time.sleep(600)  # until it is killed
"""
LONGEST_TO_FOLLOW_SECONDS = 20.0


def test_nothing_is_left_of_a_server_whose_process_was_killed(ceph_endpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("http://127.0.0.1:")
        assert len(processes_mentioning(f"{tmp_path}/ceph.conf")) == 3
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + LONGEST_TO_FOLLOW_SECONDS
    while processes_mentioning(f"{tmp_path}/ceph.conf") and time.monotonic() < deadline:
        time.sleep(0.05)  # they are no children of this process, so their end is told to nobody here
    assert processes_mentioning(f"{tmp_path}/ceph.conf") == []


def test_a_server_that_cannot_start_says_why_and_is_gone(
    ceph_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(ceph_endpoint.rpartition(":")[2])
    monkeypatch.setattr(ceph_server, "find_free_port", lambda: taken)
    expected = re.compile(r"did not come up: ceph-mon ended with exit code 1 .*\nceph-mon\.log:\n", re.DOTALL)
    with pytest.raises(RuntimeError, match=expected), running_ceph_server(tmp_path):
        pass
    assert processes_mentioning(f"{tmp_path}/ceph.conf") == []
