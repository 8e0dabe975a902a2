"""The bytes of the user's files, and what changed since they were last looked at.

Invariant: a fingerprint is the SHA-256 of a file's content. One from the cache is used only if the file's identity is
what it was, and if the file had been left alone for a while when it was hashed.
"""

import contextlib
import contextvars
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from storage.datasets import SPLITS, DatasetManifest
from storage.errors import ContractError
from storage.objects.digests import canonical_json, sha256_of_stream
from storage.processors import count_processors
from tasks.configuration.run import DataConfig
from tasks.data.identity.identities import Identities
from tasks.data.progress import OnProgress
from tasks.data.sources.source_file import SETTLED_SECONDS, SourceFile, cannot_read

FINGERPRINT_CACHE = "fingerprints.json"
CACHE_SAVE_SECONDS = 10.0
HASHING_THREADS = 4
# Of what a digest is taken over, not of what is made of it: data sets of the same inputs have the same digest.
INPUTS_FORMAT = 1
# Which split a file is for stands beside its name and its hash.
NOT_AN_INPUT: dict[str, Any] = {
    "source": True,
    "expectations": True,
    "memory_limit": True,
    "tokenizer": {"path": True},  # its content decides
    "split": {"validation_source": True, "test_source": True},
}


def fingerprint_files(
    files: list[SourceFile], scratch: Path, on_progress: OnProgress | None = None, identities: Identities | None = None
) -> list[str]:
    """Hash every file, several at a time; those that were hashed before and have not been touched are not read.

    `identities` are those of files that were hashed on another machine.
    """
    cache = _FingerprintCache(scratch / FINGERPRINT_CACHE, identities or {})
    progress = _Progress(files, on_progress)
    fingerprints = []
    with ThreadPoolExecutor(min(HASHING_THREADS, count_processors())) as pool:
        try:
            # Progress that a thread reports belongs to the flow run in which it was started.
            contexts = [contextvars.copy_context() for _ in files]
            hashing = pool.map(lambda context, file: context.run(cache.fingerprint, file, progress), contexts, files)
            for fingerprint in hashing:
                fingerprints.append(fingerprint)
                cache.save_now_and_then()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            cache.save()
    progress.finish()
    return fingerprints


def ensure_unchanged(files: list[SourceFile]) -> None:
    """Raise `ContractError` if a file was touched since it was listed: the digest would not be the data's."""
    for file in files:
        if not file.is_as_listed():
            raise ContractError(
                f"The file {file.location} was changed while it was being prepared. Nothing was published. "
                "Run again when no program writes to it any more."
            )


def read_inputs(config: DataConfig, files: list[SourceFile], fingerprints: list[str]) -> dict[str, Any]:
    """What a data set's digest is taken over: content of the files and all that decides what becomes of them."""
    # Where the tokenizer is learned, it follows from the rest; where rows have no weight, there is nothing to state.
    left_out = NOT_AN_INPUT | {name: True for name in ("tokenizer", "weight") if getattr(config, name) is None}
    return {
        "format": INPUTS_FORMAT,
        "files": [_file_input(file, sha256) for file, sha256 in zip(files, fingerprints, strict=True)],
        "data": config.model_dump(mode="json", exclude=left_out),
    }


def describe_change(old: DatasetManifest, new_inputs: dict[str, Any]) -> list[str]:
    """How the inputs of a data set differ from those of an earlier one, file by file and field by field, in words."""
    changes = _file_changes(_hashes(old.inputs), _hashes(new_inputs))
    before, now = (_flat(inputs.get("data")) for inputs in (old.inputs, new_inputs))
    before["format"], now["format"] = old.inputs.get("format"), new_inputs.get("format")
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            changes.append(f"{key}: {_shown(before.get(key))} -> {_shown(now.get(key))}")
    return changes


class _Progress:
    """The share of all bytes that is hashed, reported from several threads one after the other."""

    def __init__(self, files: list[SourceFile], on_progress: OnProgress | None) -> None:
        self.num_bytes_total = max(1, sum(file.num_bytes for file in files))
        self.num_bytes_done = 0
        self.on_progress = on_progress
        self.lock = threading.Lock()

    def note(self, num_bytes: int) -> None:
        with self.lock:
            self.num_bytes_done += num_bytes
            self._report(min(1.0, self.num_bytes_done / self.num_bytes_total))  # a file may have grown

    def finish(self) -> None:
        """All is hashed, also where a file has become shorter."""
        self._report(1.0)

    def _report(self, share: float) -> None:
        if self.on_progress is not None:
            self.on_progress("fingerprint", share)


class _FingerprintCache:
    """Fingerprints by location, kept as JSON. Losing it costs time only, so an unreadable one counts as empty."""

    def __init__(self, path: Path, identities: Identities) -> None:
        self.path = path
        self.identities = identities
        self.known: dict[str, list[Any]] = {}
        self.saved_at = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(path.read_bytes())
            self.known = loaded if isinstance(loaded, dict) else {}

    def fingerprint(self, file: SourceFile, progress: "_Progress") -> str:
        found = self._find(file)
        if found is not None:
            progress.note(file.num_bytes)
            return found
        started = time.time()
        try:
            with file.stream() as opened:
                sha256 = sha256_of_stream(opened, progress.note)
        except OSError as error:
            raise cannot_read(file.location, error) from error
        # A file touched just now may yet change unseen: it is hashed again the next time.
        is_settled = file.touched_at < started - SETTLED_SECONDS
        self.known[file.location] = [*(file.identity if is_settled else ()), sha256]
        return sha256

    def _find(self, file: SourceFile) -> str | None:
        """What is known of a file that was not touched. This machine knows best: it sees more than a listing has."""
        entry, listed_as = self.known.get(file.location), list(file.identity)
        if not isinstance(entry, list):
            entry, listed_as = self.identities.get(file.location, []), list(file.listed_as)
        return str(entry[-1]) if entry[:-1] == listed_as else None

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


def _file_input(file: SourceFile, sha256: str) -> dict[str, str]:
    split = {} if file.split is None else {"split": SPLITS[file.split]}
    return {"name": file.name, "sha256": sha256} | split


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
    return {
        key: microbatch for name, part in value.items() for key, microbatch in _flat(part, f"{prefix}.{name}").items()
    }


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
