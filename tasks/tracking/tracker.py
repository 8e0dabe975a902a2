"""Protocol of an experiment tracker.

Invariant: every call ends within a bounded time, with an answer or with `TrackerError`. After an error it is unknown
whether what was asked took place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage.errors import HoldfastError
from tasks.tracking.description import Status
from tasks.tracking.points import Point


class TrackerError(HoldfastError):
    """The tracker does not answer, or refuses; the message names it."""


@dataclass(frozen=True)
class TrackedRun:
    """A live run as the tracker has it, without its points."""

    run_id: str
    started_at: int  # milliseconds
    status: str
    tags: Mapping[str, str]
    parameters: Mapping[str, str]
    last_steps: Mapping[str, int]  # by metric that has a point
    files_address: str

    @property
    def last_step(self) -> int:
        """The highest one; -1 if there is no point."""
        return max(self.last_steps.values(), default=-1)


class Tracker(Protocol):
    """A service that keeps runs with tags, parameters, files and points (key, step, value, time)."""

    address: str

    def find_runs(self, identity: str) -> list[TrackedRun]:
        """Those of this identity, by the tag `description.ID_TAG`, that were not deleted."""

    def create_run(self, name: str, started_at: int, tags: Mapping[str, str]) -> TrackedRun:
        """A new one, with its tags from the beginning."""

    def log(self, run_id: str, points: Sequence[Point], parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Add points and parameters, set tags: at most `MOST_POINTS` and `MOST_NAMES` of each. Refused if deleted.

        A point that is there already, the same in metric, step, value and time, is added to nothing.
        """

    def set_status(self, run_id: str, status: Status, ended_at: int | None) -> None:
        """How the run stands; milliseconds."""

    def put_file(self, run: TrackedRun, name: str, data: bytes) -> None:
        """Put or replace a file of the run."""

    def delete_run(self, run_id: str) -> None:
        """Take it out of sight; a person can bring it back."""


# Of one call; what MLflow takes.
MOST_POINTS = 1000
MOST_NAMES = 100
