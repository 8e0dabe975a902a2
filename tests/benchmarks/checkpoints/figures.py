"""What `bench_checkpoint` measures, by name, and what is made of it: ratios, and the table."""

import statistics
from typing import Any

from rich.table import Table

from training.configuration import CheckpointConfig

STALL, DURABLE, VERIFIED = "exposed stall", "durable", "durable, and hashed again"
MEMORY_COPY, PLAIN_COPY = "memory copy", "write, sync, read and hash"
BESIDE_THREAD, ALONE = "step beside a thread that saves", " (alone)"
BESIDE_PROCESS = "step beside a process that saves"
BESIDE_COMPUTING = "step beside a process that only computes"
RESTORE, READING = "restore, files in memory", "reading, files in memory"
RESTORE_ON_DISK, READING_ON_DISK = "restore, files on disk", "reading, files on disk"
ASYNC = "stall of dcp.async_save"
PREEMPTION = "SIGTERM to a complete checkpoint"
# What -> against what, measured right beside it.
REFERENCES = {
    STALL: MEMORY_COPY,
    VERIFIED: PLAIN_COPY,
    **{beside: beside + ALONE for beside in (BESIDE_THREAD, BESIDE_PROCESS, BESIDE_COMPUTING)},
    RESTORE: READING,
    RESTORE_ON_DISK: READING_ON_DISK,
}
DEFAULT_CADENCE_SECONDS = CheckpointConfig().every_seconds


def all_ratios(measured: dict[str, Any]) -> dict[str, float]:
    """Of the last line."""
    median = {name: statistics.median(values) for name, values in measured.items() if name != "bytes"}
    slowdown = _ratio(measured, BESIDE_THREAD)
    lost = median[STALL] + max(0.0, slowdown - 1) * median[DURABLE]
    return {
        "stall_over_memcpy": _ratio(measured, STALL),
        "stall_over_dcp_async": median[STALL] / min(value for name, value in median.items() if name.startswith(ASYNC)),
        "step_slowdown": slowdown,
        "step_slowdown_by_computing": _ratio(measured, BESIDE_COMPUTING),
        "overhead": lost / DEFAULT_CADENCE_SECONDS,
        "verified_over_copy_and_hash": _ratio(measured, VERIFIED),
        "restore_over_read": _ratio(measured, RESTORE_ON_DISK),
        "restore_over_read_in_memory": _ratio(measured, RESTORE),
        "sigterm_to_complete_seconds": median[PREEMPTION],
    }


def make_table(measured: dict[str, Any]) -> Table:
    """A row for each figure."""
    gigabytes = measured["bytes"] / 1e9
    columns = ("what", "median s", "best s", "GB/s", "median ratio", "to")
    table = Table(*columns, title=f"A state of {gigabytes:.2f} GB", box=None)
    for name, values in measured.items():
        if name != "bytes":
            median = statistics.median(values)
            rate = "" if name.startswith("step") else f"{gigabytes / median:.2f}"
            ratio = (f"{_ratio(measured, name):.2f}", REFERENCES[name]) if name in REFERENCES else ()
            table.add_row(name, f"{median:.3f}", f"{min(values):.3f}", rate, *ratio)
    return table


def _ratio(measured: dict[str, Any], name: str) -> float:
    """The median of the rounds' ratios to the reference."""
    pairs = zip(measured[name], measured[REFERENCES[name]], strict=True)
    return float(statistics.median(value / reference for value, reference in pairs))
