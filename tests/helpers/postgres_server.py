"""A real PostgreSQL on loopback with a database for Prefect, as Debian packages it.

Invariant: nothing of it outlives the block, however the block is left, nor the server the test process if that is
killed. It refuses to run as root: for root's tests it runs as `nobody`, in a folder that belongs to `nobody`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.prefect_server import clean_environment, find_free_port, running

PROGRAMS = ("initdb", "postgres", "createdb", "pg_isready")
PACKAGE = "postgresql"
# Debian's programs are in no folder of PATH.
DEBIAN_FOLDERS = "usr/lib/postgresql/*/bin"
HOST = "127.0.0.1"
USER = "prefect"  # of the database
DATABASE = "prefect"
UNPRIVILEGED = "nobody"
START_SECONDS = 60.0
POLL_SECONDS = 0.1
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # the default is a folder that belongs to another user
    "fsync": "off",  # a process that is killed loses nothing that it has written: only a machine without power does
}


@dataclass(frozen=True)
class Postgres:
    """A database cluster in a folder, which can be served, killed, and served again."""

    programs: Path
    folder: Path
    port: int
    owner: str | None

    @property
    def url(self) -> str:
        """What Prefect takes as PREFECT_API_DATABASE_CONNECTION_URL."""
        return f"postgresql+asyncpg://{USER}@{HOST}:{self.port}/{DATABASE}"

    @contextmanager
    def serving(self) -> Iterator["subprocess.Popen[bytes]"]:
        """The server, once it answers; it and all its processes are gone when the block is left."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self.programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        with running(command, clean_environment(), self._log, self.folder, self.owner) as process:
            self._wait_until_ready(process)
            yield process

    def make(self) -> None:
        """Make the cluster: whoever reaches it on loopback may use it."""
        trusting = ["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"]
        self._call("initdb", "-D", str(self._data), *trusting)

    def make_database(self) -> None:
        """Make the database, on the server that is running."""
        self._call("createdb", "-h", HOST, "-p", str(self.port), "-U", USER, DATABASE)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "postgres.log"

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        question = [str(self.programs / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(question).returncode != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(POLL_SECONDS)  # it tells nobody when it begins to answer

    def _call(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self.programs / program), *arguments]
        done = subprocess.run(
            command, user=self.owner, cwd=self.folder, env=clean_environment(), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")


@contextmanager
def made_postgres() -> Iterator[Postgres]:
    """A new cluster with an empty database; nobody serves it yet. Its folder goes with the block."""
    programs = find_programs()
    assert programs is not None, "ask find_programs first"
    owner = UNPRIVILEGED if os.getuid() == 0 else None
    # Not a folder of pytest's: those are closed to the user that the server runs as.
    with tempfile.TemporaryDirectory(prefix="holdfast-postgres-") as name:
        folder = Path(name)
        if owner is not None:
            os.chown(folder, pwd.getpwnam(owner).pw_uid, pwd.getpwnam(owner).pw_gid)
        postgres = Postgres(programs, folder, find_free_port(), owner)
        postgres.make()
        with postgres.serving():
            postgres.make_database()
        yield postgres


def find_programs() -> Path | None:
    """The folder of PostgreSQL's programs, of the newest version that has all of them, or None."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/").glob(DEBIAN_FOLDERS), key=lambda path: int(path.parent.name), reverse=True)
    return next((folder for folder in folders if all((folder / program).exists() for program in PROGRAMS)), None)
