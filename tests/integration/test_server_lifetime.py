"""The Prefect server that `holdfast run` starts for itself: it lives as long as the command, however that ends.

That it answers is seen wherever a test runs the command; that it ends with its block, in `test_local_server.py`.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.helpers.commands import ROOT
from tests.helpers.prefect_server import clean_environment

HOLD = """
from flows.prefect_server import configured_server
with configured_server() as server:
    print("started", flush=True)
    input()
"""
WAIT = "from flows.prefect_server import configured_server as c\nwith c() as server: server.wait()"
GONE_SECONDS = 60


@contextlib.contextmanager
def command(code: str, folder: Path, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A process with a server of its own; killed at the end, if it still lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**clean_environment(), "PREFECT_HOME": str(folder / "home"), **environment},
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_server_is_gone_with_a_command_that_is_killed(tmp_path: Path) -> None:
    with command(HOLD, tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        (server,) = psutil.Process(process.pid).children()
        assert "prefect.server.api.server:create_app" in server.cmdline()
        process.kill()
        _, alive = psutil.wait_procs([server], timeout=GONE_SECONDS)
        for left in alive:
            left.kill()
        assert alive == []


def test_a_server_that_cannot_start_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path / 'missing' / 'prefect.db'}"
    with command(WAIT, tmp_path, PREFECT_API_DATABASE_CONNECTION_URL=database) as process:
        said = process.communicate()[1]
    assert process.returncode == 1
    assert "HoldfastError: The local Prefect server did not start: it ended with exit code" in said
    assert "unable to open database file" in said
