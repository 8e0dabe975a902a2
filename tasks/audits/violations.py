"""What an audit found wrong: one violation for each location, in words for a person and in fields for a program.

Invariant: a violation names its steps; samples are named by their row in the training split and by their id.
"""

from dataclasses import dataclass
from typing import Any

MAX_NAMED = 20


@dataclass(frozen=True)
class Violation:
    """`steps` and `samples` hold at most `MAX_NAMED`; the message gives the number where there are more."""

    kind: str
    steps: tuple[int, ...]
    message: str
    samples: tuple[tuple[int, str | None], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "steps": list(self.steps),
            "samples": [{"row": row, "id": id_} for row, id_ in self.samples],
            "message": self.message,
        }


def of_steps(kind: str, first_step: int, end_step: int, message: str) -> Violation:
    """A violation of all steps [first_step, end_step)."""
    return Violation(kind, tuple(range(first_step, min(end_step, first_step + MAX_NAMED))), message)


def name_steps(first_step: int, end_step: int) -> str:
    """Steps [first_step, end_step) in words, both ends included."""
    return f"step {first_step:,}" if end_step == first_step + 1 else f"steps {first_step:,} to {end_step - 1:,}"


def name_sample(row: int, id_: str | None) -> str:
    """A sample in words."""
    return f"row {row:,} (id {id_!r})" if id_ is not None else f"row {row:,} (which the training split does not have)"
