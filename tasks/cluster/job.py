"""The ranks of one lease as their supervisor sees them, wherever they run.

Invariant: of every implementation holds what `tests/integration/test_launchers.py` asks: leaving the block ends the
ranks, what they reported comes whole and in order, and launching what runs already launches nothing.
"""

from types import TracebackType
from typing import Protocol, Self

from training.metrics.reporter import Report
from training.rank_status import RankStatus


class Job(Protocol):
    """A context manager: the ranks are launched on entering, or found where they run, and none outlives the block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def is_running(self, wait_seconds: float) -> bool:
        """Wait a moment for the ranks to end, and kill them if their time to leave is over; whether any may run."""

    def read_reports(self) -> list[Report]:
        """What the ranks reported since the last call, oldest first. Raises `StoreUnavailableError`."""

    def read_rank_statuses(self) -> list[RankStatus]:
        """Where each rank was a few seconds ago. Raises `StoreUnavailableError`."""

    def describe_wait(self) -> str | None:
        """Why nothing runs yet, in the cluster's words; None once the ranks have been started."""

    def describe_growth(self) -> str | None:
        """Why the ranks had better save and leave: with the next job they would be more. None if they would not."""

    def stop(self) -> None:
        """Ask the ranks to save and leave, once however often it is called."""

    def write_stacks(self) -> None:
        """Let each rank that runs write into its log where all of its threads stand; returns when they had time to."""

    def kill(self) -> None:
        """End all of them, as fast as the cluster does, without waiting for a save."""

    def leave(self) -> None:
        """Do not end ranks elsewhere when the block is left: another process watches them now."""

    def describe_end(self) -> str | None:
        """How the job ended by the cluster's account; None where it has none."""

    def read_log(self) -> str:
        """What the ranks printed, the newest of it if it is long."""
