"""A folder of one user's own below a folder that all users may write, such as /tmp.

Invariant: what is used is a folder, no link, that belongs to this user and that no other user can read or write: else
another user who made it first could read what is written, or choose what is read.
"""

import os
import stat
from pathlib import Path

from storage.errors import StoreError

PRIVATE_MODE = 0o700
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(path: Path, setting: str) -> None:
    """Make the folder unless it is there. `setting` is what a person sets to have another one.

    One that others may read is closed to them. Raises `StoreError` for one that is not
    only this user's, and `OSError` if it cannot be made.
    """
    path.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
    found = path.lstat()
    problem = _find_problem(found)
    if problem is not None:
        raise StoreError(
            f"{path} is to hold working files of this user alone: expected a folder that belongs to user {os.getuid()} "
            f"with mode 0700, found {problem}. Find out who made it, or set {setting} to another folder."
        )
    if stat.S_IMODE(found.st_mode) != PRIVATE_MODE:
        path.chmod(PRIVATE_MODE)


def _find_problem(found: os.stat_result) -> str | None:
    if stat.S_ISLNK(found.st_mode):
        return "a symbolic link"
    if found.st_uid != os.getuid():
        return f"that it belongs to another user ({found.st_uid})"
    if found.st_mode & WRITABLE_BY_OTHERS:
        return f"mode {stat.S_IMODE(found.st_mode):04o}, which lets others write in it"
    return None
