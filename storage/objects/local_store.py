"""A store in a folder of a POSIX file system, local or shared.

Invariant: a key names a complete object or none. Bytes are written under a temporary name in `.tmp`, synced, and then
given their key in one atomic step (link or rename), after which the folder is synced too. What a killed writer leaves
behind in `.tmp` is never listed and never read.
"""

import contextlib
import errno
import io
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path

from storage.errors import (
    ObjectExistsError,
    ObjectMissingError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from storage.objects.keys import RESERVED_FOLDER, split_key

TEMPORARY_FOLDER = RESERVED_FOLDER
_RESERVED_PREFIX = f"{RESERVED_FOLDER}/"
SWEEP_AGE_SECONDS = 24 * 3600
PLACE_ATTEMPTS = 20
CHUNK_BYTES = 8 << 20
# Errors of a network file system while its server or the network is away; EIO also that of a bad block of a disk.
TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


class LocalStore:
    """The `Store` protocol over the folder `root`, which is made when the first object is written."""

    page_keys: int | None = None  # the system gives all names of a folder, whichever are asked for

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._is_root_synced = False

    @property
    def address(self) -> str:
        return str(self.root)

    def read(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except OSError as error:
            raise self._unreadable(key, error) from error

    def write(self, key: str, data: bytes) -> None:
        with self._explained(key):
            temporary = self._write_temporary(data)
            try:
                self._give_key(key, temporary.replace)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def write_if_absent(self, key: str, data: bytes) -> None:
        with self._explained(key):
            temporary = self._write_temporary(data)
            try:
                self._link(temporary, key)
            finally:
                temporary.unlink()

    def put_file(self, source: Path, key: str) -> None:
        self._place_file(source, key, lambda temporary: self._link(temporary, key))

    def replace_file(self, source: Path, key: str) -> None:
        self._place_file(source, key, lambda temporary: self._give_key(key, temporary.replace))

    def fetch(self, key: str, is_checked: bool = False) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise self._missing(key)
        return path

    def path_of(self, key: str) -> Path:
        """Where the object is, or would be."""
        return self._path(key)

    def open(self, key: str) -> io.RawIOBase:
        try:
            return self._path(key).open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except OSError as error:
            raise self._unreadable(key, error) from error

    def read_chunks(self, key: str) -> Iterator[bytes]:
        try:
            with self._path(key).open("rb", buffering=0) as file:
                # What the system has in memory would hide what became of the bytes on the device.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except OSError as error:
            raise self._unreadable(key, error) from error

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        begin = prefix[: prefix.rfind("/") + 1]
        if begin.startswith(_RESERVED_PREFIX):
            return
        try:
            yield from list(islice(_walk(str(self.root / begin), begin, prefix, after), most))
        except OSError as error:
            raise self._unreadable(prefix, error) from error

    def delete(self, key: str) -> None:
        with self._explained(key):
            path = self._path(key)
            path.unlink(missing_ok=True)
            self._remove_empty_folders(path.parent)

    def sweep(self) -> None:
        oldest = time.time() - SWEEP_AGE_SECONDS
        for path in (self.root / TEMPORARY_FOLDER).glob("*"):
            # Another sweeper may be quicker, and a file may get its key right now: both make it vanish.
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and path.lstat().st_ctime < oldest:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*split_key(key))

    def _temporary_path(self) -> Path:
        path = self.root / TEMPORARY_FOLDER / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _place_file(self, source: Path, key: str, place: Callable[[Path], None]) -> None:
        with self._explained(key):
            temporary = self._temporary_path()
            try:
                try:
                    # A second name for the same bytes costs nothing; another file system needs a copy.
                    os.link(source, temporary)
                except OSError:
                    shutil.copyfile(source, temporary)  # half of it would take the last space of a full disk
                sync_file(temporary)
                place(temporary)
            finally:
                temporary.unlink(missing_ok=True)

    def _write_temporary(self, data: bytes) -> Path:
        path = self._temporary_path()
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _link(self, temporary: Path, key: str) -> None:
        try:
            self._give_key(key, lambda target: os.link(temporary, target))
        except FileExistsError as error:
            with contextlib.suppress(FileNotFoundError):  # deleted since
                self._sync_folders_of(key)  # the caller relies on it from now on, and its writer may have died
            raise ObjectExistsError(f"{self.address}/{key} exists already and objects are never changed.") from error

    def _give_key(self, key: str, put: Callable[[Path], object]) -> None:
        """Give an object its key, durably. Deleting a folder's last object removes the folder, also concurrently."""
        for attempt in range(PLACE_ATTEMPTS):
            try:
                target = self._path(key)
                target.parent.mkdir(parents=True, exist_ok=True)
                put(target)
                self._sync_folders_of(key)
                return
            except FileNotFoundError:
                if attempt + 1 == PLACE_ATTEMPTS:
                    raise

    def _sync_folders_of(self, key: str) -> None:
        """Make an object's name durable, and those of all folders it is in, each of which is an entry in its parent.

        Also of folders that were there: who made them may have died before it synced them. What is synced already
        costs microseconds.
        """
        folder = self._path(key).parent
        while folder != self.root:
            sync_folder(folder)
            folder = folder.parent
        sync_folder(self.root)
        if not self._is_root_synced:
            _sync_folders_above(self.root)
            self._is_root_synced = True

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self.root:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or another process was quicker
            folder = folder.parent

    def _missing(self, key: str) -> ObjectMissingError:
        return ObjectMissingError(f"{self.address}/{key} is missing.")

    def _unreadable(self, key: str, error: OSError) -> StoreError:
        return explain_unreadable(self.address, key, error)

    def _explained(self, key: str) -> "_Explained":
        return _Explained(self.address, key)


class _Explained:
    """Turns an `OSError` of the file system into a `StoreError` with the path and what to do."""

    def __init__(self, address: str, key: str) -> None:
        self.address = address
        self.key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise _error_class(error)(
                f"Cannot write to the store {self.address}: {error.strerror or error} (at {self.key}). "
                "Check that its folder is there or can be made, is writable and has space left, then run again."
            ) from error


def explain_unreadable(address: str, key: str, error: OSError) -> StoreError:
    """What to raise in place of the system's own error, also by who reads a file that the store has opened."""
    return _error_class(error)(
        f"Cannot read from the store {address}: {error.strerror or error} (at {key}). "
        "Check its address, that its disk has no errors and that you may read it, then run again."
    )


def _error_class(error: OSError) -> type[StoreError]:
    if isinstance(error, PermissionError):  # on a network's file system also where a ticket has run out
        return StoreRefusedError
    return StoreUnavailableError if error.errno in TRANSIENT_ERRNOS else StoreError


def _sync_folders_above(root: Path) -> None:
    """Make the name of a store's folder durable, and of those it is in, up to where its file system is mounted."""
    device = root.stat().st_dev
    for folder in root.parents:
        try:
            if folder.stat().st_dev != device:
                return
            sync_folder(folder)
        except PermissionError:
            return  # who may not read a folder has not made anything in it, nor above it


def _walk(folder: str, begin: str, prefix: str, after: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys of all files below a folder whose keys begin with `begin`: those that `list_keys` gives, in its order.

    What vanishes while it is looked at was deleted by another process, and is no error. Links to folders are followed,
    as they are where a listing begins: what is in a folder does not depend on from where it is asked. `above` are the
    folders around it, so that a circle of links ends. A long run has many thousand files: no path is made of a name.
    """
    found = []
    for entry in _look_into(folder):
        # A file's key comes where its name with a slash would: what no key behind it can be wanted of is left out.
        key = f"{begin}{entry.name}/"
        if (key > after or after.startswith(key)) and key.startswith(prefix) and key != _RESERVED_PREFIX:
            found.append((key if _is_folder(entry) else key[:-1], entry))
    for key, entry in sorted(found, key=itemgetter(0)):
        if not key.endswith("/"):
            if key > after:
                yield key
        elif not _is_circle(entry, (folder, *above)):
            yield from _walk(entry.path, key, prefix, after, (folder, *above))


def _look_into(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it is not there."""
    try:
        return list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # no file system has it
            return []
        raise


def _is_circle(folder: os.DirEntry[str], above: tuple[str, ...]) -> bool:
    return folder.is_symlink() and any(Path(path).samefile(folder.path) for path in above)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries are on the device: without it a new name can vanish in a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
