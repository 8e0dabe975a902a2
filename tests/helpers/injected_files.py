"""Every operation of this process on a watched file, counted, traced, and made to fail or to be the last.

Python's own ways to the file system are wrapped: `open`, the calls of `os`, and with them `pathlib` and `shutil`. What
a library writes by itself (Arrow's writer, the one of safetensors) is not seen; what the product then does with the
file is. Invariant: a fault takes place before its operation does; of a write, after half of its bytes.
"""

import builtins
import errno
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

from tests.helpers.fault_plans import LATE_SECONDS, Death, FileFault, Moment
from tests.helpers.injected_process import REAL_OPEN, REAL_WRITE, InjectedProcess
from tests.helpers.unsynced_files import UnsyncedFiles

PRODUCT = ("storage.", "training.", "tasks.", "flows.")
STORES = ("storage.objects.local_store",)
CALLERS = 3
BLOCK_BYTES = 4096
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# What differs from run to run, from step to step and from segment to segment.
VARYING = [
    (re.compile(r"(^|/)runs/[^/]+"), r"\1runs/RUN"),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "RANDOM"),
    (re.compile(r"\b(f?)\d{8,}\b"), r"\1N"),
    (re.compile(r"-[0-9a-f]{8}\b"), "-RANDOM"),
    (re.compile(r"\bstart-[a-z0-9_]{8}\b"), "start-RANDOM"),
]


def place_of(path: str, watched: Sequence[str]) -> str | None:
    """Where a file is below the watched folders, without what varies; None if it is elsewhere."""
    root = next((root for root in watched if path == root or path.startswith(f"{root}/")), None)
    if root is None:
        return None
    place = path[len(root) + 1 :] or "."
    for pattern, name in VARYING:
        place = pattern.sub(name, place)
    return place


def is_at(moment: Moment, met: Mapping[str, Any]) -> bool:
    """Whether an operation is one of those that the moment counts."""
    asked = {name: getattr(moment, name) for name in ("role", "rank", "thread", "operation", "caller")}
    if any(wanted is not None and wanted != met[name] for name, wanted in asked.items()):
        return False
    if moment.path not in met["path"]:
        return False
    return bool(met["place"] == moment.place if moment.exact else moment.place in met["place"])


class FileOperations:
    """Stands between this process and the files below the watched folders."""

    def __init__(
        self, process: InjectedProcess, watched: list[str], faults: list[tuple[int, FileFault]], is_traced: bool
    ) -> None:
        self._process = process
        self._watched = watched
        self._faults = faults
        # What fails from a moment on goes on failing in processes that are started later.
        lasting = [fault.times != 1 and process.has_fired(index) for index, fault in faults]
        self._counts = [fault.moment.nth - 1 if lasts else 0 for (_, fault), lasts in zip(faults, lasting, strict=True)]
        self._met_at: dict[int, float] = {}  # by the fault's index, of those that last for some seconds
        self._lock = threading.RLock()
        self.unsynced = UnsyncedFiles()
        trace = process.folder / "trace" / f"{os.getpid()}.jsonl"
        self._trace = REAL_OPEN(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if is_traced else None

    def install(self) -> None:
        """From now on."""
        io.open = builtins.open = self._opening(io.open)
        for name, operation in (("unlink", "unlink"), ("remove", "unlink"), ("mkdir", "mkdir"), ("rmdir", "rmdir")):
            setattr(os, name, self._on_path(operation, getattr(os, name)))
        for name, operation in (("link", "link"), ("rename", "rename"), ("replace", "rename")):
            setattr(os, name, self._on_two_paths(operation, getattr(os, name)))
        for name, operation in (("fsync", "fsync"), ("fdatasync", "fsync"), ("write", "write"), ("pwrite", "write")):
            setattr(os, name, self._on_descriptor(operation, getattr(os, name)))
        os.open = self._on_open(os.open)
        for name in ("sendfile", "copy_file_range"):
            setattr(os, name, self._on_copy(getattr(os, name), out=0 if name == "sendfile" else 1))

    def meet(self, operation: str, path: str, half: Callable[[], object] | None = None, source: str = "") -> bool:
        """Say that an operation is about to take place; whether its file is watched.

        `half` does half of it; `source` is the file that is about to get the name `path`.
        """
        place = place_of(path, self._watched)
        if place is None or _changes_nothing(operation, path) or self._is_synced(operation, path):
            return False
        # Which of a pool's threads takes up a piece of work differs from run to run.
        process, thread = self._process, re.sub(r"_\d+$", "", threading.current_thread().name)
        met = {
            "role": process.role,
            "rank": process.rank,
            "thread": thread,
            "caller": _caller(),
            "operation": operation,
            "path": path,
        }
        met["place"] = place + _event_of(source, place)
        is_late = False
        with self._lock:
            self._write_trace(met)
            for position, (index, fault) in enumerate(self._faults):
                if is_at(fault.moment, met):
                    self._counts[position] += 1
                    if self._counts[position] >= fault.moment.nth:
                        self._fire(index, fault, path, met, half)
                        is_late = is_late or fault.effect == "late"
        if is_late:
            time.sleep(LATE_SECONDS)  # the fault itself, without the lock: this thread alone is late
        return True

    def _is_synced(self, operation: str, path: str) -> bool:
        """Whether it syncs a folder in which this process has named nothing since it synced it last."""
        return operation == "fsync" and os.path.isdir(path) and not self.unsynced.has_names_in(path)  # noqa: PTH112

    def _fire(
        self, index: int, fault: FileFault, path: str, met: dict[str, Any], half: Callable[[], object] | None
    ) -> None:
        if self._is_over(index, fault) or not self._process.claim(index, fault.times, **met):
            return
        if fault.effect == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.effect == "late":
            return  # other threads are not to wait for it
        elif fault.effect in get_args(Death):
            if half is not None:
                with suppress(OSError):
                    half()
            self._process.strike(fault.effect, last=self.unsynced.lose if fault.effect == "power" else None)
        else:
            number = getattr(errno, fault.effect)
            raise OSError(number, os.strerror(number), path)

    def _is_over(self, index: int, fault: FileFault) -> bool:
        now = time.monotonic()
        return fault.seconds is not None and now - self._met_at.setdefault(index, now) > fault.seconds

    def _write_trace(self, met: dict[str, Any]) -> None:
        if self._trace is not None:
            line = json.dumps(met | {"pid": os.getpid(), "at_ns": time.monotonic_ns()})
            REAL_WRITE(self._trace, line.encode() + b"\n")

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opening(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
            newline: str | None = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            is_plain = isinstance(file, str | os.PathLike) and opener is None
            writes = set(mode) & set("wax+")
            if not is_plain or not self.meet("open" if writes else "read", _absolute(file)) or not writes:
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            path = _absolute(file)
            is_new = not os.path.lexists(path)
            raw = _WatchedFile(self, path, mode.replace("b", "").replace("t", ""))
            self.unsynced.written(path)
            if is_new:
                self.unsynced.named(path)
            return _layered(raw, mode, buffering, encoding, errors, newline)

        return opening

    def _on_path(self, operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
            full = _absolute(path, dir_fd)
            is_watched = self.meet(operation, full)
            result = real(path, *arguments, dir_fd=dir_fd, **named)
            if is_watched and operation == "mkdir":
                self.unsynced.named(full)
            return result

        return call

    def _on_two_paths(self, operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, **named: Any) -> Any:
            full = _absolute(target, named.get("dst_dir_fd"))
            is_watched = self.meet(operation, full, source=_absolute(source, named.get("src_dir_fd")))
            result = real(source, target, **named)
            if is_watched:
                self.unsynced.named(full)
            return result

        return call

    def _on_descriptor(self, operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: Any, *arguments: Any) -> Any:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            path = _path_of(number)
            half = None
            if operation == "write":
                data, *rest = arguments
                half = lambda: real(number, _half_of(data), *rest)  # noqa: E731 - called at once
            is_watched = self.meet(operation, path, half)
            if is_watched and operation == "write":
                self.unsynced.written(path)
            result = real(descriptor, *arguments)
            if is_watched and operation == "fsync":
                self.unsynced.synced(path)
            return result

        return call

    def _on_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, flags: int, *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
            full = _absolute(path, dir_fd) if flags & WRITING else ""
            is_new = bool(full) and self.meet("open", full) and not os.path.lexists(full)
            descriptor = real(path, flags, *arguments, dir_fd=dir_fd, **named)
            if is_new:
                self.unsynced.written(full)
                self.unsynced.named(full)
            return descriptor

        return call

    def _on_copy(self, real: Callable[..., Any], out: int) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            path = _path_of(arguments[out])
            if self.meet("write", path):
                self.unsynced.written(path)
            return real(*arguments, **named)

        return call


class _WatchedFile(io.FileIO):
    """A file under its buffer: what arrives here goes to the operating system."""

    def __init__(self, operations: FileOperations, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._operations = operations
        self._path = path

    def write(self, data: Any) -> int:
        write = super().write
        self._operations.meet("write", self._path, lambda: write(_half_of(data)))
        self._operations.unsynced.written(self._path)
        return write(data)


def _layered(
    raw: _WatchedFile, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> Any:
    """What `open` makes of a raw file, by the rules of its documentation."""
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
    if "b" in mode:
        return buffered
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)


def _half_of(data: Any) -> memoryview:
    """From where it is, and of much only whole blocks: direct I/O takes no others."""
    half = len(data) // 2
    return memoryview(data)[: half - half % BLOCK_BYTES or half]


def _changes_nothing(operation: str, path: str) -> bool:
    """Whether the operation will find that there is nothing to do, so that before it is as after it."""
    if operation == "mkdir":
        return os.path.isdir(path)  # noqa: PTH112
    if operation == "rmdir":
        return not os.path.isdir(path) or bool(os.listdir(path))  # noqa: PTH112, PTH208
    return operation == "unlink" and not os.path.lexists(path)


def _caller() -> str:
    """For what this is done: the nearest functions of the product above its store, the innermost last."""
    names: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(names) < CALLERS:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PRODUCT) and module not in STORES:
            names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return " > ".join(reversed(names))


def _event_of(source: str, place: str) -> str:
    """What a generation of the manifest says that happened: all of them have one place."""
    if not source or not place.startswith("runs/RUN/manifest/"):
        return ""
    descriptor = REAL_OPEN(source, os.O_RDONLY)
    try:
        event = json.loads(os.read(descriptor, os.fstat(descriptor).st_size))["event"]
    finally:
        os.close(descriptor)
    return " " + re.sub(r"\d+", "N", event)


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    text = os.fsdecode(path)
    return os.path.abspath(text if dir_fd is None else os.path.join(_path_of(dir_fd), text))  # noqa: PTH100, PTH118


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - for each write: as cheap as can be
    except OSError:
        return ""
