"""The Prefect server of a command: the one that is configured, or a local one where none is.

Prefect would start a local one by itself, but in the terminal's process group, where Ctrl-C ends it before the flow is
done, and without a tie to this process, so that a kill would leave it behind. Invariant: the server lives exactly as
long as the block, or as this process if that is killed, and its database too. One that ends by itself is started again
on the same port, with the same database. A local one is begun at once, while this process reads what it has to do and
loads Prefect; Prefect is imported here only to ask a configured one, and that one only after a user's mistakes were
looked for. It is asked as Prefect itself asks it, with its certificates, headers and keys, and nothing that stands in
its address beside host and path is ever printed.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flows.own_prefect import (
    ask_loopback_directly,
    database_settings,
    find_profiles,
    give_home,
    give_up_empty_database,
    has_home,
    keep_empty_database,
    own_folder,
)
from storage.errors import HoldfastError
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console
from tasks.prefect_bridge.private.local_server import serving
from training.stopping import follow_parent

# It loads Prefect, which takes seconds: without a server of the user's one is started meanwhile.
with lazy_imports():
    import flows.configured_prefect as configured_prefect

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

START_SECONDS = 120.0
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0
KEEP_SECONDS = 1.0
MAX_RESTARTS = 5

# No telemetry, no advice, no user interface; nothing leaves the machine.
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # a page for each event while a server is away; all are sent later
    "PREFECT_CLI_PROMPT": "false",
}
# The server's own log is a file that is read when it ends by itself.
SERVER_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    # A library of its queue would write, at each start, checks of the types of its own functions' arguments.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
}
LAST_WORDS_BYTES = 2000


class LocalServer:
    """A server process, with its database in `folder`. `wait` returns when it answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, name="local server", daemon=True)
        self._process = self._launch()

    def _launch(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            serving(self._port),
            env={**os.environ, **database_settings(self._folder), **SERVER_SETTINGS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,  # a file: an unread pipe would block the server once it is full
            cwd=Path(sys.executable).parent,  # uvicorn imports from the current folder first
            start_new_session=True,
            preexec_fn=follow_parent,
        )

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/api"

    def wait(self) -> None:
        """Wait until the server answers. Raises `HoldfastError` with its output if it does not."""
        import httpx  # a quarter of a second, which the server need not be begun later for

        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    if client.get(f"{self.api_url}/health").status_code == httpx.codes.OK:
                        keep_empty_database(self._folder)
                        self._keeper.start()
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(POLL_SECONDS)  # it does not signal that it listens
        exit_code = self._process.poll()
        self.stop()
        what = f"did not answer within {START_SECONDS:.0f} s"
        if exit_code is not None:  # on a machine that is only busy, the next one would take longer yet
            give_up_empty_database(self._folder)
            what = f"ended with exit code {exit_code} before it answered"
        raise HoldfastError(f"The local Prefect server did not start: it {what}. Its output:\n{self._last_words()}")

    def _last_words(self) -> str:
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        return self._stderr.read().decode(errors="replace").strip() or "nothing"

    def _keep_alive(self) -> None:
        """The kernel ends a server with the thread that launched it: this one lives as long as the process."""
        num_restarts = 0
        while not self._stopping.wait(KEEP_SECONDS) and num_restarts < MAX_RESTARTS:
            if (exit_code := self._process.poll()) is not None:
                num_restarts += 1
                self._print_end(exit_code, is_last=num_restarts == MAX_RESTARTS)
                self._process = self._launch()

    def _print_end(self, exit_code: int, is_last: bool) -> None:
        last_line = self._last_words().splitlines()[-1]
        console.print(
            f"The local Prefect server ended by itself with exit code {exit_code}. Training does not depend on it. "
            f"It is started again{', for the last time' if is_last else ''}. Its last line: {last_line}",
            soft_wrap=True,
        )

    def stop(self) -> None:
        """End the server."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class CommandServer:
    """The server that a command uses. `local` is None for one that the user has configured.

    A server is configured by PREFECT_API_URL or by a profile of Prefect's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.local: LocalServer | None = None
        # Of a home that is given here, nothing but Prefect may hear: in a configuration `~` is the user's or an error.
        if has_home() and not _may_be_configured():
            self.begin()

    def begin(self) -> None:
        """Begin a local server if none is configured, unless it is begun. To be called before Prefect is imported.

        Raises `ConfigurationError` if the configured one does not answer.
        """
        if self.local is not None:
            return
        give_home(self._folder)
        if _may_be_configured() and configured_prefect.does_answer():
            return
        self.local = LocalServer(self._folder)
        os.environ["PREFECT_API_URL"] = self.local.api_url

    def wait(self) -> None:
        """Wait until the local server answers. Raises `HoldfastError` with its output if it does not."""
        if self.local is not None:
            self.local.wait()

    def stop(self) -> None:
        """End the local server."""
        if self.local is not None:
            self.local.stop()


@contextmanager
def configured_server() -> Iterator[CommandServer]:
    """The environment for Prefect, and the configured server, or a local one for as long as the block lasts."""
    _make_environment()
    with own_folder() as folder:
        server = CommandServer(folder)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def asking_server() -> Iterator["SyncPrefectClient"]:
    """The environment for Prefect, and a client of the configured server: none is started where none is configured.

    Raises `ConfigurationError` as `configured_prefect.asking` does.
    """
    _make_environment()
    with tempfile.TemporaryDirectory() as folder:
        give_home(Path(folder))
        with configured_prefect.asking() as client:
            yield client


def _make_environment() -> None:
    os.environ.update(SETTINGS | os.environ)
    ask_loopback_directly()


def _may_be_configured() -> bool:
    """Whether there is something that Prefect would have to be asked about."""
    return bool(os.environ.get("PREFECT_API_URL")) or find_profiles().is_file()
