"""All that is watched of one segment, reported by its supervisor.

Invariant: the supervisor passes on what was reported to it, and waits for nothing here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from storage.runs.run_state import CheckpointRecord, RunState
from tasks.configuration.run import RunConfig
from tasks.monitoring.disks import DiskWatch
from tasks.monitoring.figures import SegmentFigures
from tasks.monitoring.server import serving
from tasks.run_paths import RunPaths
from training.metrics.reporter import Report


class Monitor:
    """The monitor of the segment that began with `state`."""

    def __init__(self, config: RunConfig, run_paths: RunPaths, state: RunState) -> None:
        self.figures = SegmentFigures(run_paths.store.address, state, config.train.num_steps)
        self._disks = DiskWatch(run_paths)
        self._disks.look(state.promoted.num_bytes if state.promoted else None)

    def show(self, report: Report) -> None:
        """The ranks reported something."""
        self.figures.heard(report)
        self._disks.look_now_and_then()

    def promoted(self, record: CheckpointRecord) -> None:
        """A checkpoint became the resume point."""
        self.figures.promoted(record)
        self._disks.look(record.num_bytes)


@contextmanager
def monitoring(config: RunConfig, run_paths: RunPaths, state: RunState) -> Iterator[Monitor]:
    """From the beginning of the segment that holds the lease in `state`, to its end."""
    monitor = Monitor(config, run_paths, state)
    with serving(monitor.figures, config.segment.metrics_host, config.segment.metrics_port):
        yield monitor
