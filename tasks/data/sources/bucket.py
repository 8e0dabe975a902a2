"""Source files in a bucket: which ones an address names, and how they are read.

Invariant: an address names the same files, with the same names, as the path of a folder with the same files would; and
all that is read of an object is of the version that was listed: each answer names the version that it is from.
"""

import glob
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigurationError
from storage.objects.s3.address import parse_source_address
from storage.objects.s3.connection import NEXT_OBJECTS, S3Connection, StoredObject
from storage.objects.s3.reader import open_object, open_stream
from storage.objects.s3.transfers import download_ranges
from tasks.data.sources.formats import A_SOURCE, SUFFIXES, is_in_source
from tasks.data.sources.parquet_ranges import needed_ranges
from tasks.data.sources.patterns import is_match
from tasks.data.sources.source_file import SourceFile

WILDCARDS = "*?["


@dataclass(frozen=True, kw_only=True)
class BucketFile(SourceFile):
    """One version of an object."""

    s3: S3Connection
    key: str
    found: StoredObject

    @property
    def listed_as(self) -> tuple[int | str, ...]:
        return self.identity

    @property
    def changed_at(self) -> float:
        return 0.0  # an ETag is of the content

    @property
    def touched_at(self) -> float:
        return 0.0

    def open(self) -> pa.NativeFile:
        return pa.PythonFile(open_object(self.s3, self.key, self.found), mode="r")

    def stream(self) -> io.BufferedReader:
        return open_stream(self.s3, self.key, self.found)

    def bring(self, columns: set[str], path: Path, rows: range | None = None) -> SourceFile:
        """A file of the same size with the bytes of these columns at their offsets, and holes elsewhere."""
        with self.open() as opened:
            footer = pq.read_metadata(opened)
        with path.open("xb") as file:
            file.truncate(self.num_bytes)
            download_ranges(self.s3, self.key, self.found, needed_ranges(footer, columns, self.num_bytes, rows), file)
        return replace(self, parquet=path)

    def is_as_listed(self) -> bool:
        return True  # all reading compares


def find_in_bucket(source: str, setting: str) -> tuple[list[BucketFile], list[str]]:
    """The files that an address names, in no particular order: those below a prefix, an object, or a pattern's matches.

    And the names of what is listed with them and is not taken.
    What is there is taken as it is, so a prefix may have `[` or `*` in it. Raises `ConfigurationError` if there are
    none, `StoreError` if the bucket cannot be listed.
    """
    address, typed = parse_source_address(source, setting)
    s3 = S3Connection(address)
    folder = typed if not typed or typed.endswith("/") else f"{typed}/"
    below = listed = list(_list(s3, folder, folder))
    if below:
        files = [file for file in below if is_in_source(file.name)]
    elif typed != folder and (found := s3.find(typed)) is not None:
        return [_file(s3, typed, typed.rpartition("/")[2], found)], []
    else:
        listed, files = _matches(s3, typed.rstrip("/")) if glob.has_magic(typed) else ([], [])
    if not files:
        raise ConfigurationError(_nothing_found(s3, typed, folder, is_folder=bool(below)))
    taken = {file.key for file in files}
    return files, [file.name for file in listed if file.key not in taken]


def _list(s3: S3Connection, prefix: str, folder: str) -> Iterator[BucketFile]:
    """The objects whose keys begin with `prefix`, with their names in `folder`."""
    for page in s3.pages("list_objects_v2", prefix, NEXT_OBJECTS):
        for entry in page.get("Contents", []):
            # A console makes an empty object with a slash at its end for each folder.
            if not entry["Key"].endswith("/"):
                found = StoredObject(entry["Size"], entry["ETag"])
                yield _file(s3, entry["Key"], entry["Key"].removeprefix(folder), found)


def _file(s3: S3Connection, key: str, name: str, found: StoredObject) -> BucketFile:
    location, identity = f"{s3.address}/{key}", (found.num_bytes, found.etag)
    return BucketFile(
        name=name, location=location, num_bytes=found.num_bytes, identity=identity, s3=s3, key=key, found=found
    )


def _matches(s3: S3Connection, pattern: str) -> tuple[list[BucketFile], list[BucketFile]]:
    """The objects that were listed for a pattern, and those of them that match.

    Their names are relative to what stands before the first part of the pattern that has a wildcard.
    """
    parts = pattern.split("/")
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = "".join(f"{part}/" for part in parts[:first])
    start = parts[first][: min(parts[first].find(mark) for mark in WILDCARDS if mark in parts[first])]
    listed = list(_list(s3, folder + start, folder))
    return listed, [file for file in listed if is_match(file.name.split("/"), parts[first:])]


def _nothing_found(s3: S3Connection, typed: str, folder: str, is_folder: bool) -> str:
    setting = s3.address.setting
    if is_folder or not typed:
        return (
            f"{setting}: {s3.address}/{folder} has no *.parquet files, nor others of a known format "
            f"({', '.join(SUFFIXES)}). Name the prefix, object or glob that has them."
        )
    location = f"{s3.address}/{typed}"
    if glob.has_magic(typed):
        return f"{setting}: no object matches {location}. Correct the pattern; ** also looks into folders below."
    close = get_close_matches(typed.rstrip("/"), _beside(s3, typed.rstrip("/")), n=3)
    hint = f" There is {', '.join(f'{s3.address}/{name}' for name in close)}." if close else ""
    return f"{setting}: there is nothing at {location}.{hint} Set {setting} to a {A_SOURCE}."


def _beside(s3: S3Connection, key: str) -> list[str]:
    """What is in the same folder, as far as the first page of a listing goes."""
    folder = key[: key.rfind("/") + 1]
    page = next(s3.pages("list_objects_v2", folder, NEXT_OBJECTS, Delimiter="/"))
    folders = [entry["Prefix"].rstrip("/") for entry in page.get("CommonPrefixes", [])]
    return folders + [entry["Key"] for entry in page.get("Contents", [])]
