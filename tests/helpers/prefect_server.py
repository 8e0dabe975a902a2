"""A real local Prefect server with a database of its own, for as long as a block of a test.

Invariant: nothing of it outlives the block, however the block is left, nor the test process if that is killed. What
stays on the machine is an empty database, kept because Prefect starts three times as long where it has to make one.
"""

import fcntl
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import psutil

from storage.objects.private_folder import make_private_folder
from tasks.cluster.processes import kill_tree
from training.stopping import follow_parent

START_SECONDS = 300.0  # for what hangs, not for what is slow: on PostgreSQL the first start makes all tables
STOP_SECONDS = 15.0
# All tests share a server. One of its answers took more than half a minute once, with five workers of pytest beside it.
ANSWER_SECONDS = 150.0
# How often `prefect` and `holdfast` ask again. The server answers 503 where two requests that read and then write meet,
# as SQLite lets one write at a time; on a busy machine again and again. Prefect's clients wait 2 s, 4 s, 8 s and so on
# before they ask again: by default a minute in all, like this more than four.
RETRIES_WHILE_BUSY = 7
PATIENT = {"PREFECT_CLIENT_MAX_RETRIES": str(RETRIES_WHILE_BUSY)}
POLL_SECONDS = 0.2
DATABASE = "prefect.db"  # where Prefect looks for it in its home
LOG = "server.log"  # there too
# What the server does every few seconds and no test needs; together nearly half of what it costs while nobody asks.
AUTOMATIONS = "TRIGGERS"
UNUSED_SERVICES = ("FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS", "REPOSSESSOR", AUTOMATIONS)


@contextmanager
def running_prefect_server(
    folder: Path,
    port: int | None = None,
    with_automations: bool = False,
    database: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, str]]:
    """Start a server with its home in `folder`; yields the environment in which `prefect` and `holdfast` use it.

    On the same port and with the same folder it is the server that was there before, started again. Its database is
    SQLite in that folder, or the one of the connection URL `database`. `settings` come last, in its environment.
    """
    with starting_prefect_server(folder, port, with_automations, database, settings) as environment:
        wait_until_healthy(environment)
        yield environment


@contextmanager
def starting_prefect_server(
    folder: Path,
    port: int | None = None,
    with_automations: bool = False,
    database: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, str]]:
    """As `running_prefect_server`, and the server may not answer yet: see `wait_until_healthy`."""
    port = port or find_free_port()
    if database is None and not (folder / DATABASE).exists():
        put_empty_database(folder)
    unused = [name for name in UNUSED_SERVICES if not (with_automations and name == AUTOMATIONS)]
    environment = clean_environment() | {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_DATABASE_CONNECTION_URL": database or f"sqlite+aiosqlite:///{folder / DATABASE}",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_CLI_COLORS": "false",
        "DO_NOT_TRACK": "1",
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in unused},
        **settings,
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, environment, folder / LOG, folder):
        yield environment


def wait_until_healthy(environment: Mapping[str, str]) -> None:
    """Wait until the server of this environment answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{environment['PREFECT_API_URL']}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)  # it tells nobody when it begins to listen
    said = (Path(environment["PREFECT_HOME"]) / LOG).read_text()[-4000:]
    raise RuntimeError(f"The Prefect server did not start within {START_SECONDS:.0f} s:\n{said}")


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    user: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in the background, of another user's if root gives one. It and all its descendants are gone when the
    block is left."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=follow_parent, user=user,
            pass_fds=pass_fds,
        )  # fmt: skip
    try:
        yield process
    finally:
        _stop(process)


def put_empty_database(home: Path) -> None:
    """Copy a database with Prefect's tables and nothing in them to `home`. Who comes first on a machine makes it."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-tests-{os.getuid()}"
    make_private_folder(folder, "TMPDIR")
    kept = folder / f"prefect-{version('prefect')}.db"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _make_empty_database(kept)
    shutil.copyfile(kept, home / DATABASE)


def _make_empty_database(kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent) as home:
        made = Path(home) / DATABASE
        url = f"sqlite+aiosqlite:///{made}"
        environment = clean_environment() | {"PREFECT_HOME": home, "PREFECT_API_DATABASE_CONNECTION_URL": url}
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        whole = Path(home) / "whole.db"  # with what may still stand in SQLite's log
        with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(whole)) as target:
            source.backup(target)
        whole.replace(kept)


def clean_environment() -> dict[str, str]:
    """This process's environment without what would make Prefect use another server or other settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}


def find_free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to leave, then kill whatever is left of its family, also what it left to nobody."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
    for descendant in family:
        kill_tree(descendant.pid)
    psutil.wait_procs(family, timeout=STOP_SECONDS)
    process.wait(STOP_SECONDS)
