"""A folder of files, or a file, for a person, outside any store, which appears whole or not at all.

Invariant: every file in it, and the folder, is on the device before it gets its name. Where it takes the place of an
earlier one, that stays until the new one is whole. A SIGKILL leaves what was made so far beside, under a name that
begins with a dot; between the two renames of a folder, the earlier one too.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from storage.errors import StoreError
from storage.objects.local_store import sync_file, sync_folder


def write_folder(out: Path, fill: Callable[[Path], object]) -> None:
    """Make the folder `out` of what `fill` puts into a new one beside it; what stands there is replaced.

    Raises what `fill` raises, and `StoreError` where the disk fails: then all is as it was.
    """
    beside = out.with_name(f".{out.name}-{uuid.uuid4().hex[:12]}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        fill(beside)
        for path in beside.iterdir():
            sync_file(path)
        sync_folder(beside)
        _put_in_place(beside, out)
    except OSError as error:
        raise StoreError(
            f"Cannot write the folder {out}: {error.strerror or error}. Check that the folder it is in can be written "
            "and has space left, or give another one. What was there before is still there."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_file(out: Path, fill: Callable[[Path], object]) -> None:
    """Make the file `out` of what `fill` writes to one beside it; a file that stands there is replaced.

    Raises what `fill` raises, and `StoreError` where `out` is a folder or the disk fails: then all is as it was.
    """
    beside = out.with_name(f".{out.name}-{uuid.uuid4().hex[:12]}")
    try:
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        fill(beside)
        sync_file(beside)
        beside.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise StoreError(
            f"Cannot write {out}: {error.strerror or error}. Check that its folder is there, can be written and "
            "has space left, or give another file. What was there before is still there."
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def _put_in_place(beside: Path, out: Path) -> None:
    if not os.path.lexists(out):
        beside.rename(out)
        sync_folder(out.parent)
        return
    # A folder that is not empty can be replaced by no single operation of Python's.
    earlier = out.with_name(f"{beside.name}-earlier")
    out.rename(earlier)
    try:
        beside.rename(out)
    except OSError:
        earlier.rename(out)
        raise
    sync_folder(out.parent)
    # The new one is in place, on the device too: what is left of the earlier one is no failure.
    if earlier.is_symlink():
        earlier.unlink(missing_ok=True)
    else:
        shutil.rmtree(earlier, ignore_errors=True)
