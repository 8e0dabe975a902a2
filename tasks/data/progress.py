"""Progress of a preparation, and how its parts are run.

Progress is a phase, and the share of it that is done, from 0 to 1.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

OnProgress = Callable[[str, float], None]
OnContract = Callable[[dict[str, Any] | None], object]
Value = TypeVar("Value")


class RunPart(Protocol):
    """Runs one part of the preparation: its name, and what returns its value and one sentence about it."""

    def __call__(self, name: str, work: Callable[[], tuple[Value, str]]) -> Value: ...


def run_plainly(name: str, work: Callable[[], tuple[Value, str]]) -> Value:
    """Run a part without a step of Prefect's around it."""
    return work()[0]


def ignore_contract(contract: dict[str, Any] | None) -> None:
    """Where the result of the data's contract is not shown."""
