"""What the Prefect of one command has for itself: a folder with its database, and a home where the user has none.

Invariant: the user's own database of Prefect, which another version may have written, is neither read nor changed. The
folder is removed with its command, or by the next one if that was killed. Nothing of Prefect is imported here.
"""

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from storage.errors import StoreError
from storage.objects.private_folder import make_private_folder
from tasks.prefect_bridge.private.local_server import is_whole

DATABASE = "prefect.db"
IN_USE = "in-use"  # locked for as long as the command lives
PREFIX = "command-"
# By each of these a user configures which database the server has.
DATABASE_SETTINGS = ("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL")
LOOPBACK = ("127.0.0.1", "localhost")
PROXY_SETTINGS = ("NO_PROXY", "no_proxy")
# Services of a server that look, from its start on and every few seconds, for what the database of one command never
# has: deployments and their schedules, workers, leases, automations, runs that are late, paused or of another process.
NEEDLESS_SERVICES = (
    "SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "FOREMAN", "REPOSSESSOR",
    "CLEANUP_RECONCILER", "TRIGGERS", "EVENT_PERSISTER",
)  # fmt: skip
# What a server does at each start with a database that has its tables and Prefect's kinds of blocks: it loads Alembic
# and a hundred migrations, and each installed collection (with `holdfast[dask]` Dask, too), and writes each kind anew.
# What it remembers to have written is of no use here, as it counts for one address of a database.
MADE_SETTINGS = {
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",  # else the collections are loaded all the same
}


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for the block, with the empty database of this version of Prefect if one was kept."""
    with _lasting_folder() as lasting:
        with _locked(lasting / "lock"):
            _remove_left_behind(lasting)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=lasting))
            in_use = (folder / IN_USE).open("w")
            fcntl.flock(in_use, fcntl.LOCK_EX)
            _copy_empty_database(folder)
        try:
            yield folder
        finally:
            in_use.close()
            shutil.rmtree(folder, ignore_errors=True)


def keep_empty_database(folder: Path) -> None:
    """Keep the folder's database for later commands, unless one is kept: to make its tables takes a server seconds."""
    kept = _empty_database(folder)
    if kept.exists() or not (folder / DATABASE).exists():
        return
    with suppress(OSError, sqlite3.Error):
        copy = folder / "copy.db"  # with what may still stand in SQLite's log
        with closing(sqlite3.connect(folder / DATABASE)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        copy.replace(kept)


def give_up_empty_database(folder: Path) -> None:
    """The next command begins without the one that is kept: with it a server did not start."""
    _empty_database(folder).unlink(missing_ok=True)


def has_home() -> bool:
    """Whether this user has a home, that can be written or not."""
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def give_home(folder: Path) -> None:
    """Have Prefect in this process, and in its children, use `folder` where the user has no home that can be written.

    Prefect asks for the home of the user even where another one is configured.
    """
    if not has_home():
        os.environ["HOME"] = str(folder)
    home = prefect_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError:
        os.environ["PREFECT_HOME"] = str(folder)


def prefect_home() -> Path:
    """Where Prefect keeps its settings."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def ask_loopback_directly() -> None:
    """Have no proxy asked for what is on this machine, in this process and in its children."""
    for name in PROXY_SETTINGS:
        given = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
        if "*" not in given:
            os.environ[name] = ",".join([*given, *(host for host in LOOPBACK if host not in given)])


def database_settings(folder: Path) -> dict[str, str]:
    """The environment of a server that is to have a database of its own, unless the user configures one.

    A database that is in `folder` is complete: a copy of the one that was kept, or a server answered with it.
    """
    # What Prefect remembers to have put into a database: in the user's home it would mean the user's own one.
    memory = {"PREFECT_MEMO_STORE_PATH": str(folder.parent / f"memo-{version('prefect')}.toml")}
    if any(os.environ.get(name) for name in DATABASE_SETTINGS) or _is_database_in_profiles():
        return memory
    is_made = (folder / DATABASE).exists()
    own = {DATABASE_SETTINGS[0]: f"sqlite+aiosqlite:///{folder / DATABASE}"}
    own |= {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in NEEDLESS_SERVICES}
    return memory | own | (MADE_SETTINGS if is_made else {})


def find_profiles() -> Path:
    """Where Prefect keeps profiles, if there are any."""
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or prefect_home() / "profiles.toml").expanduser()


def _is_database_in_profiles() -> bool:
    profiles = find_profiles()
    return profiles.is_file() and any(name in profiles.read_text() for name in DATABASE_SETTINGS)


@contextmanager
def _lasting_folder() -> Iterator[Path]:
    """This user's own, on a disk of this machine; where another user has made it, one for the block."""
    lasting = Path(tempfile.gettempdir()) / f"holdfast-prefect-{os.getuid()}"
    try:
        make_private_folder(lasting, "TMPDIR")
    except (OSError, StoreError):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    yield lasting


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_left_behind(lasting: Path) -> None:
    """Folders of commands that were killed: their lock is free."""
    for folder in lasting.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / IN_USE).open("a") as in_use:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _copy_empty_database(folder: Path) -> None:
    """Give the folder the database that was kept, or none: the server then makes its tables."""
    try:
        shutil.copyfile(_empty_database(folder), folder / DATABASE)
    except OSError:  # none was kept, or the disk is full
        is_kept = False
    else:
        is_kept = is_whole(folder / DATABASE)
    if not is_kept:
        (folder / DATABASE).unlink(missing_ok=True)


def _empty_database(folder: Path) -> Path:
    return folder.parent / f"empty-{version('prefect')}.db"
