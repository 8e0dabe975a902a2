"""Who is told how a segment gets on: the terminal, the flow run's page, and whoever else wants to know.

Invariant: being told takes no time to speak of; what takes long is done in a thread of the listener's own.
"""

from typing import Protocol

from storage.runs.run_state import CheckpointRecord
from training.metrics.reporter import Report


class Audience(Protocol):
    """Told by the process that supervises the ranks, in its thread."""

    def show(self, report: Report) -> None:
        """Take over one report of the ranks."""

    def promoted(self, record: CheckpointRecord) -> None:
        """This checkpoint is the resume point now."""
