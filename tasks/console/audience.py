"""Listeners to the progress of a segment: the terminal, the flow run's page, and others.

Invariant: a listener returns at once; what takes long is done in a thread of its own.
"""

from typing import Protocol

from storage.runs.run_state import CheckpointRecord
from training.metrics.reporter import Report


class Audience(Protocol):
    """Called by the process that supervises the ranks, in its thread."""

    def show(self, report: Report) -> None:
        """Take over one report of the ranks."""

    def promoted(self, record: CheckpointRecord) -> None:
        """This checkpoint is the resume point now."""
