"""A file of the user's, wherever it is: the one way by which preparation reads the source.

Invariant: a name is relative to the source and does not depend on where it is, so the same files give the same data set
from a folder and from a bucket. All that is read of a file is of the version that was listed, or that is noticed.
"""

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from storage.datasets import SPLITS
from storage.errors import ConfigurationError
from storage.objects.s3.address import SOURCE_SETTING
from tasks.data.sources.formats import PARQUET, format_of

# A file that was touched so shortly before may be written again within one tick of its clock.
SETTLED_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class SourceFile(ABC):
    """One file as it was listed. `name` is relative to the source: it is what messages and the digest have.

    `location` is the path or the address by which a person finds it. Two versions of a file with one `identity` are
    taken to have the same bytes. `parquet` is a file on this machine which has the rows of the columns that are read:
    the user's own, where it is one, or one that was made of it. `split` is the index of the split to which all rows
    belong where the split has a source of its own.
    """

    name: str
    location: str
    num_bytes: int
    identity: tuple[int | str, ...]
    parquet: Path | None = None
    split: int | None = None

    @property
    def rows(self) -> Path:
        """`parquet`, which must be there by now."""
        assert self.parquet is not None, f"{self.name} was not brought to this machine"
        return self.parquet

    @property
    def setting(self) -> str:
        """The setting whose source it is of."""
        return SOURCE_SETTING if self.split is None else f"data.split.{SPLITS[self.split]}_source"

    @property
    @abstractmethod
    def listed_as(self) -> tuple[int | str, ...]:
        """The part of `identity` that is the same on every machine which sees this file."""

    @property
    @abstractmethod
    def changed_at(self) -> float:
        """As `touched_at`, by `listed_as`."""

    @property
    @abstractmethod
    def touched_at(self) -> float:
        """Unix time of the last change that `identity` distinguishes from the one before; 0 if it distinguishes all."""

    @abstractmethod
    def open(self) -> pa.NativeFile:
        """The file, to be read here and there. Raises `OSError` or, from a bucket, `StoreError`; so does reading."""

    @abstractmethod
    def stream(self) -> io.BufferedReader:
        """The file, to be read from its beginning to its end. Raises what `open` raises."""

    @abstractmethod
    def bring(self, columns: set[str], path: Path, rows: range | None = None) -> "SourceFile":
        """This Parquet file with all or these of its rows on this machine, for which a file may be made at `path`."""

    @abstractmethod
    def is_as_listed(self) -> bool:
        """Whether all that was read up to now is of the version that was listed.

        Raises `ConfigurationError` where that cannot be seen.
        """


@dataclass(frozen=True, kw_only=True)
class LocalFile(SourceFile):
    """A file on this machine, or on a file system that it mounts."""

    path: Path

    @property
    def listed_as(self) -> tuple[int | str, ...]:
        return self.identity[:2]  # size and time of the last change

    @property
    def changed_at(self) -> float:
        return int(self.identity[1]) / 1e9

    @property
    def touched_at(self) -> float:
        # Two writes within the clock's tick leave the same times.
        return max(int(time) for time in self.identity[1:3]) / 1e9

    def open(self) -> pa.NativeFile:
        # Not mapped into memory: a file that another program cuts off would end this process.
        return pa.OSFile(str(self.path))

    def stream(self) -> io.BufferedReader:
        return self.path.open("rb")

    def bring(self, columns: set[str], path: Path, rows: range | None = None) -> SourceFile:
        return self

    def is_as_listed(self) -> bool:
        try:
            return _identity(self.path) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise cannot_read(self.location, error) from error


def local_file(path: Path, name: str) -> LocalFile:
    """A file as it is now. Raises `ConfigurationError`."""
    try:
        identity = _identity(path)
    except OSError as error:
        raise cannot_read(str(path), error) from error
    parquet = path if format_of(name) == PARQUET else None
    return LocalFile(
        name=name, location=str(path), num_bytes=identity[0], identity=identity, parquet=parquet, path=path
    )


def cannot_read(location: str, error: OSError) -> ConfigurationError:
    """Error for a file that the system does not let us read."""
    return ConfigurationError(f"Cannot read the source file {location}: {error.strerror}.")


def _identity(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
