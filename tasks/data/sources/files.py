"""The user's files: which ones they are, what their bytes are, and what changed since they were last looked at.

Invariant: a fingerprint is the SHA-256 of a file's content. One from the cache is used only if the file's size, times
and inode are what they were, and if the file had been left alone for a while when it was hashed.
"""

import contextlib
import glob
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from storage.datasets import DATASET_FORMAT, DatasetManifest
from storage.errors import ConfigurationError, ContractError
from storage.objects.addresses import path_of
from storage.objects.digests import canonical_json, sha256_of_file
from tasks.configuration import DataConfig
from tasks.data.sources.formats import FORMATS, SUFFIXES, is_data, require_one_format

A_SOURCE = f"file ({FORMATS}), a folder of such files, or a glob"
FINGERPRINT_CACHE = "fingerprints.json"
SETTLED_SECONDS = 2.0
CACHE_SAVE_SECONDS = 10.0
HASHING_THREADS = 4
# The order of the classes is an input where it decides something: `tasks.data.class_order`.
NOT_AN_INPUT = {"source", "memory_limit", "class_order"}

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class SourceFile:
    """One file of the user's. `name` is relative to the source: it is what messages and the digest have.

    `parquet` has the rows of a file of another format.
    """

    path: Path
    name: str
    parquet: Path | None = None

    @property
    def readable(self) -> Path:
        """The Parquet file that has the rows: the user's own, where it is one."""
        return self.parquet or self.path


@dataclass(frozen=True)
class Fingerprint:
    """A file's content hash, and what `stat` said before the file was read."""

    sha256: str
    stat: list[int]


def find_files(source: str) -> list[SourceFile]:
    """The files a source names, sorted by name: one file, a folder's files of a known format, or a glob's matches.

    A path that exists is taken as it is, so a folder may have `[` or `*` in its name. Raises `ConfigurationError` if
    there are none, or files of more than one format.
    """
    if not source:
        raise ConfigurationError(f"data.source is not set. Set it to a {A_SOURCE}.")
    if "://" in source:
        raise ConfigurationError(
            f"data.source must be a file, a folder or a glob on this machine, found {source!r}. "
            "Download the files, or mount the bucket, and name the folder."
        )
    path = path_of(source).absolute()
    if path.is_file():
        return [SourceFile(path, path.name)]
    folder, paths = (path, _data_in(path)) if path.is_dir() else _matches(path)
    files = [SourceFile(found, found.relative_to(folder).as_posix()) for found in paths]
    if not files:
        raise ConfigurationError(_nothing_found(source, path))
    require_one_format(source, sorted(file.name for file in files))
    return sorted(files, key=lambda file: file.name)


def read_inputs(config: DataConfig, files: list[SourceFile], fingerprints: list[Fingerprint]) -> dict[str, Any]:
    """What a data set's digest is taken over: content of the files and all that decides what becomes of them."""
    return {
        "format": DATASET_FORMAT,
        "files": [
            {"name": file.name, "sha256": fingerprint.sha256}
            for file, fingerprint in zip(files, fingerprints, strict=True)
        ],
        "data": config.model_dump(mode="json", exclude=NOT_AN_INPUT),
    }


def fingerprint_files(
    files: list[SourceFile], scratch: Path, on_progress: OnProgress | None = None
) -> list[Fingerprint]:
    """Hash every file, several at a time; those that were hashed before and have not been touched are not read."""
    cache = _FingerprintCache(scratch / FINGERPRINT_CACHE)
    fingerprints = []
    try:
        with ThreadPoolExecutor(min(HASHING_THREADS, os.cpu_count() or 1)) as pool:
            for num_done, fingerprint in enumerate(pool.map(cache.fingerprint, files), start=1):
                fingerprints.append(fingerprint)
                cache.save_now_and_then()
                if on_progress is not None:
                    on_progress("fingerprint", num_done / len(files))
    finally:
        cache.save()
    return fingerprints


def ensure_unchanged(files: list[SourceFile], fingerprints: list[Fingerprint]) -> None:
    """Raise `ContractError` if a file was touched since it was fingerprinted: the digest would not be the data's."""
    for file, fingerprint in zip(files, fingerprints, strict=True):
        if not file.path.exists() or _stat(file.path) != fingerprint.stat:
            raise ContractError(
                f"The file {file.path} was changed while it was being prepared. Nothing was published. "
                "Run again when no program writes to it any more."
            )


def describe_change(old: DatasetManifest, new_inputs: dict[str, Any]) -> list[str]:
    """How the inputs of a data set differ from those of an earlier one, file by file and field by field, in words."""
    changes = _file_changes(_hashes(old.inputs), _hashes(new_inputs))
    before, now = (_flat(inputs.get("data")) for inputs in (old.inputs, new_inputs))
    before["format"], now["format"] = old.inputs.get("format"), new_inputs.get("format")
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            changes.append(f"{key}: {_shown(before.get(key))} -> {_shown(now.get(key))}")
    return changes


class _FingerprintCache:
    """Fingerprints by path, kept as JSON. Losing it costs time only, so an unreadable one counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, list[Any]] = {}
        self.saved_at = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(path.read_bytes())
            self.known = loaded if isinstance(loaded, dict) else {}

    def fingerprint(self, file: SourceFile) -> Fingerprint:
        try:
            stat = _stat(file.path)
            entry = self.known.get(str(file.path))
            if isinstance(entry, list) and entry[:-1] == stat:
                return Fingerprint(str(entry[-1]), stat)
            started = time.time()
            sha256 = sha256_of_file(file.path)
        except OSError as error:
            raise ConfigurationError(f"Cannot read the source file {file.path}: {error.strerror}.") from error
        # Two writes within the clock's tick leave the same times: a file touched just now may yet change unseen.
        if max(stat[1:3]) < (started - SETTLED_SECONDS) * 1e9:
            self.known[str(file.path)] = [*stat, sha256]
        return Fingerprint(sha256, stat)

    def save_now_and_then(self) -> None:
        if time.monotonic() - self.saved_at > CACHE_SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        self.saved_at = time.monotonic()
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            temporary.write_bytes(canonical_json(dict(self.known)))
            temporary.replace(self.path)


def _stat(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _data_in(folder: Path) -> list[Path]:
    """All files of a known format below, but what writers leave aside: `_metadata`, `_temporary/`, hidden files."""
    found = (path for path in folder.rglob("*") if is_data(path.name) and path.is_file())
    return [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]


def _matches(pattern: Path) -> tuple[Path, list[Path]]:
    """The folder above the first part with a wildcard, and the files that match."""
    plain = [not glob.has_magic(part) for part in pattern.parts]
    if all(plain):
        return pattern.parent, []
    folder = Path(*pattern.parts[: plain.index(False)])
    found = [Path(match) for match in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207 - ** as in a shell
    return folder, [path for path in found if path.is_file()]


def _nothing_found(source: str, path: Path) -> str:
    if path.is_dir():
        return (
            f"data.source: the folder {path} has no *.parquet files, nor others of a known format "
            f"({', '.join(SUFFIXES)}). Name the folder, file or glob that has them."
        )
    if glob.has_magic(source):
        return f"data.source: no file matches {path}. Correct the pattern; ** also looks into folders below."
    siblings = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=3)
    hint = f" There is {', '.join(close)}." if close else ""
    return f"data.source: {path} does not exist.{hint} Set data.source to a {A_SOURCE}."


def _hashes(inputs: dict[str, Any]) -> dict[str, str]:
    return {str(file["name"]): str(file["sha256"]) for file in inputs.get("files", [])}


def _file_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    changes = [
        f"file {name}: content changed" for name in sorted(before.keys() & now.keys()) if before[name] != now[name]
    ]
    gone = {sha256: name for name, sha256 in before.items() if name not in now}
    for name in sorted(now.keys() - before.keys()):
        old_name = gone.pop(now[name], None)
        changes.append(f"file {old_name}: now called {name}" if old_name else f"file {name}: new")
    return changes + [f"file {name}: gone" for name in sorted(gone.values())]


def _flat(value: Any, prefix: str = "data") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {key: leaf for name, part in value.items() for key, leaf in _flat(part, f"{prefix}.{name}").items()}


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
