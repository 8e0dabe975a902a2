"""Points of a run, step by step: taken from its promoted checkpoint, its marks and its test results.

Invariant: only what is durable is sent. A point is the same for every reader at any time, as long as the run does not
go back behind its step.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.history import newest_part_of
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.history import walk_history
from storage.objects.store import Store
from storage.runs.run_state import RunState
from tasks.tracking.marks import Marks


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    key: str
    step: int
    value: float
    milliseconds: int


@dataclass(frozen=True)
class Snapshot:
    """A run as it stood at a promotion, or at its end."""

    state: RunState
    marks: Marks


def read_points(store: Store, snapshot: Snapshot, after_step: int = -1) -> list[Point]:
    """All points of later steps, in the order of their steps. Raises `StoreError`.

    Where a part of the history is damaged what was before is left out, as in the report.
    """
    state, marks = snapshot.state, snapshot.marks
    values = list(_values(_read_entries(store, state, after_step)))
    values += [(key, mark.step, value) for mark in marks.after(after_step) for key, value in mark.figures.items()]
    if state.headline is not None and state.metrics_step is not None:
        # At the last step, whichever model was tested: what comes at an earlier one would not be sent any more.
        values += [(f"test/{name}", state.metrics_step, float(v)) for name, v in state.headline.metrics.items()]
    wanted = [entry for entry in values if after_step < entry[1] <= marks.last_step]
    return [
        Point(key, step, value, marks.milliseconds(state, step))
        for key, step, value in sorted(wanted, key=lambda entry: (entry[1], entry[0]))
    ]


def _values(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, float]]:
    for entries in parts:
        for step, loss, rate in entries["loss"]:
            yield "loss", step, float(loss)
            yield "learning_rate", step, float(rate)
        for step, norm in entries["gradient_norm"]:
            yield "gradient_norm", step, float(norm)
        for validation in entries["validation"]:
            for name, value in validation["metrics"].items():
                yield f"validation/{name}", validation["step"], float(value)


def _read_entries(store: Store, state: RunState, after_step: int) -> list[Mapping[str, Any]]:
    """The parts of the history that have steps after `after_step`, and maybe one more; newest first."""
    if state.promoted is None:
        return []
    stated = json.loads(store.read(f"{state.promoted.path}/{STATE_NAME}"))
    parts: list[Mapping[str, Any]] = [stated["history"]]
    if _first_step(parts[0]) <= after_step:
        return parts
    try:
        for content in walk_history(store, newest_part_of(stated)):
            parts.append(content.entries)
            if _first_step(content.entries) <= after_step:
                break
    except (CorruptObjectError, ObjectUnreadableError):
        pass  # the report shows it, and a scrub
    return parts


def _first_step(entries: Mapping[str, Any]) -> float:
    """From which on a part has all there is; of a part without a validation that is unknown."""
    if not entries["loss"] or not entries["validation"]:
        return float("inf")
    return float(max(entries["loss"][0][0], entries["validation"][0]["step"]))
