"""Two models, and which weights of the one belong where in the other: returned by a model's source, kept in start.json.

Invariant: plain data. Which they are is the matter of the source; copying them is that of `first_weights.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Described:
    """A model as an export describes it: preprocessing.json, labels.json, the sizes in model.json, and the tokens."""

    inputs: Mapping[str, Any]
    labels: Mapping[str, Any]
    sizes: Mapping[str, Any]
    tokens: Mapping[str, int] | None  # None: its input are token ids

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.labels["classes"]
        return names


@dataclass(frozen=True)
class Copy:
    """`source` to `target`, both names of tensors: whole, or indices `from_` along `axis` to indices `to`."""

    source: str
    target: str
    axis: int | None = None
    from_: tuple[int, ...] = ()
    to: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "axis": self.axis, "from": self.from_, "to": self.to}


@dataclass(frozen=True)
class Correspondence:
    """Weights that are copied, and in words what has no counterpart."""

    copies: list[Copy]
    words: list[str]
