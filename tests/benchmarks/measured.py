"""What a command takes: time, memory and disk, with all processes that it starts.

Memory is the sum over its processes of what each has for itself, and its share of what several have (PSS), taken four
times a second; so a peak that is shorter may be missed.
"""

import math
import os
import resource
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Measured:
    """One command: its time, and the most that it had at any moment."""

    seconds: float
    cpu_seconds: float
    memory_bytes: int
    disk_bytes: int


def measure(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Measured:
    """Run it to its end; disk is what the folder has. Raises `SystemExit` if it fails."""
    memory_bytes = disk_bytes = 0
    began, began_cpu = time.monotonic(), _cpu_seconds()
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            memory_bytes = max(memory_bytes, _memory(process.pid))
            disk_bytes = max(disk_bytes, num_bytes_in(folder))
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_SECONDS)  # nobody tells how much memory processes have: it is looked at
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return Measured(time.monotonic() - began, _cpu_seconds() - began_cpu, memory_bytes, disk_bytes)


def growth_exponent(rows: Sequence[int], seconds: Sequence[float]) -> float:
    """Of the time as a power of the number of rows, between the two largest; 1 is a straight line."""
    if len(rows) < 2:
        return math.nan
    return math.log(seconds[-1] / seconds[-2]) / math.log(rows[-1] / rows[-2])


def num_bytes_in(folder: Path) -> int:
    """Of all files below it; they may be removed meanwhile."""

    def size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    # Not `rglob`, which fails where a folder is gone before it is looked into.
    return sum(size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def _cpu_seconds() -> float:
    """Of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _memory(pid: int) -> int:
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []
