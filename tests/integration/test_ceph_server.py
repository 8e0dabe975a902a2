"""A real S3 server: a whole run goes over it, and the helper that starts it keeps what it promises."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.helpers import ceph_server
from tests.helpers.ceph_server import running_ceph_server
from tests.helpers.commands import ROOT, Runner, processes_mentioning
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import BUCKET, s3_environment
from tests.helpers.tiny_runs import write_tiny_configuration

WAITS_FOREVER = """
import sys, time
from pathlib import Path
from tests.helpers.ceph_server import running_ceph_server

with running_ceph_server(Path(sys.argv[1])) as endpoint:
    print(endpoint, flush=True)
    time.sleep(600)  # until it is killed
"""
LONGEST_TO_FOLLOW_SECONDS = 20.0


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str], ceph_endpoint: str) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    store = f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix"
    configuration = write_tiny_configuration(tmp_path, "real-server", store, tmp_path / "data")
    # What is downloaded goes below TMPDIR.
    environment = {**prefect_server, **s3_environment(ceph_endpoint), "TMPDIR": str(tmp_path)}
    return Runner(configuration, {"store": store, "scratch": tmp_path / "scratch"}, environment)


def test_a_run_over_a_real_server_completes_and_its_files_and_samples_are_proven(runner: Runner) -> None:
    runner.run()
    status = runner.status()
    assert (status["state"], status["step"], len(status["segments"])) == ("completed", 4, 1)
    verified = runner.call("verify")
    assert verified.returncode == 0 and "None yet." not in verified.stdout, verified.stdout + verified.stderr
    audited = runner.call("audit")
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_nothing_is_left_of_a_server_whose_process_was_killed(ceph_endpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("http://127.0.0.1:")
        assert len(processes_mentioning(f"{tmp_path}/ceph.conf")) == 3
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + LONGEST_TO_FOLLOW_SECONDS
    while processes_mentioning(f"{tmp_path}/ceph.conf") and time.monotonic() < deadline:
        time.sleep(0.05)
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
