"""What a finished run of a drill left in the store, as the drill compares it.

Invariant: reads only; nothing is taken from the processes that trained.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME, fetch_model, load_checkpoint, read_checkpoint_file
from storage.checkpoints.history import read_whole_history
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.ledger import LedgerPart
from storage.runs.manifest import Manifest
from storage.runs.metric_values import MetricValue
from storage.runs.run_state import RunState, SegmentRecord
from tasks.text import at_least, count_of


@dataclass(frozen=True)
class TrainedRun:
    """A run that came to its end: manifest, loss curves, audit of its samples, and where its ledger and weights are."""

    address: str
    state: RunState
    history: Mapping[str, Any]
    audit: Mapping[str, Any]
    ledger: LedgerPart | None
    model: Sequence[Path]

    @property
    def weights_sha256(self) -> str:
        return self.state.promoted.weights_sha256 if self.state.promoted else ""

    @property
    def metrics(self) -> Mapping[str, MetricValue]:
        """On the test split."""
        return self.state.metrics or {}

    @property
    def validation_losses(self) -> dict[int, MetricValue]:
        """Step -> loss on the validation split."""
        return {entry["step"]: entry["metrics"]["loss"] for entry in self.history["validation"]}

    @property
    def segments(self) -> list[SegmentRecord]:
        return self.state.segments

    @property
    def steps_lost(self) -> int:
        return self.state.steps_lost

    @property
    def lost_words(self) -> str:
        """'3 steps', or 'at least 3 steps'."""
        return at_least(count_of(self.steps_lost, "step"), self.state.steps_lost_is_least)


def read_trained_run(store: Store, run: str, audit: Mapping[str, Any]) -> TrainedRun:
    """`audit` is the result of `audit_run`. Raises `CorruptObjectError` if its checkpoint is not as it was written."""
    state = Manifest(store, run).load_head().state
    assert state.promoted is not None, "the command that trained it ended well"
    found = load_checkpoint(store, state.promoted.path, state.promoted.digest)
    return TrainedRun(
        address=run_address(store, run),
        state=state,
        history=read_whole_history(store, json.loads(read_checkpoint_file(store, found, STATE_NAME))),
        audit=audit,
        ledger=found.index.ledger,
        model=fetch_model(store, found),
    )
