"""What became of one thing on a Prefect server, in words and for programs.

Invariant: nothing is called unchanged that was written, and nothing is written that is as it should be.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["deployment", "schedule", "automation"]
Did = Literal["created", "updated", "unchanged", "removed", "kept"]


@dataclass(frozen=True)
class Change:
    """One thing on the server, what was done to it, and what is different now, or why it stays."""

    did: Did
    kind: Kind
    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.did.capitalize()}: {self.kind} {self.name}{f' ({self.why})' if self.why else ''}"
