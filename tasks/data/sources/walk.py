"""What is in a folder of the user's, and below it.

Invariant: nothing is left out in silence. Links are followed; what cannot be looked into, and a link to nothing, is an
error; what is not looked into, because of its name or because it leads back, is named.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from storage.errors import ConfigurationError


class Found(NamedTuple):
    """Names relative to the folder, with `/`, in no particular order: all files, and folders that were not entered."""

    files: list[str]
    not_entered: list[str]


def walk(folder: Path, setting: str, is_entered: Callable[[str], bool], matters: Callable[[str], bool]) -> Found:
    """All files below a folder: in those below it that `is_entered` takes by their names.

    `setting` names the folder in messages. A link to nothing is passed over unless its name `matters`. Raises
    `ConfigurationError` for what the system does not let us see.
    """
    found = Found([], [])
    _Walk(setting, is_entered, matters, found).look_into(str(folder), "", frozenset())
    return found


class _Walk(NamedTuple):
    setting: str
    is_entered: Callable[[str], bool]
    matters: Callable[[str], bool]
    found: Found

    def look_into(self, path: str, prefix: str, above: frozenset[tuple[int, int]]) -> None:
        """Take what is in a folder; `above` are the folders around it, so that a circle of links is noticed."""
        try:
            here = os.stat(path)  # noqa: PTH116
            with os.scandir(path) as listed:
                entries = list(listed)
        except FileNotFoundError as error:
            raise ConfigurationError(_vanished(self.setting, path)) from error
        except OSError as error:
            raise cannot_look(self.setting, path, error) from error
        around = above | {(here.st_dev, here.st_ino)}
        for entry in entries:
            self._take(entry, f"{prefix}{entry.name}", around)

    def _take(self, entry: os.DirEntry[str], name: str, around: frozenset[tuple[int, int]]) -> None:
        try:
            if entry.is_dir():
                status = entry.stat()
                if self.is_entered(name) and (status.st_dev, status.st_ino) not in around:
                    self.look_into(entry.path, f"{name}/", around)
                else:
                    self.found.not_entered.append(f"{name}/")
                return
            if entry.is_file() or not self.matters(name):
                self.found.files.append(name)
                return
            os.stat(entry.path)  # noqa: PTH116
        except FileNotFoundError as error:
            raise ConfigurationError(_vanished(self.setting, entry.path)) from error
        except OSError as error:
            if self.matters(name):
                raise cannot_look(self.setting, entry.path, error) from error
        self.found.not_entered.append(name)  # a socket, a pipe or a device


def cannot_look(setting: str, path: str, error: OSError) -> ConfigurationError:
    """Error for a path of a source that the system does not let us see."""
    return ConfigurationError(
        f"{setting}: cannot look at {path}: {error.strerror or error}. What is there belongs to the source, so nothing "
        "is left out instead: let this user read it, or name a folder, file or glob without it."
    )


def describe_link_to_nothing(path: str) -> str | None:
    """Message about a link whose target is not there; None where the path is no link."""
    try:
        target = os.readlink(path)  # noqa: PTH115
    except OSError:
        return None
    return f"{path} is a link to {target}, which is not there. Bring the file that it stands for, or remove the link."


def _vanished(setting: str, path: str) -> str:
    of_link = describe_link_to_nothing(path)
    return f"{setting}: {of_link or f'{path} was removed while the source was listed. Run again.'}"
