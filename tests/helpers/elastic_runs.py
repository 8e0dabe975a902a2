"""Segments of one small run in one store, on any number of ranks, and when two of them came to the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.checkpoints.checkpoints import FoundCheckpoint, verify_checkpoint
from storage.objects.local_store import LocalStore
from storage.runs.ledger import LedgerHeader, walk_ledger
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.runs import find_complete_checkpoints
from tests.helpers.training import make_spec, read_log, train_forked
from training.spec import SegmentSpec
from training.world import World

MICROBATCHES = 8
STEPS = 12


class Runs:
    """Segments of one run in one store, each under the next fence."""

    def __init__(self, folder: Path, kind: str = "multiclass") -> None:
        self.store = LocalStore(folder / "store")
        self._folder = folder
        self.dataset = publish_small_dataset(self.store, folder / "work", rows=100, kind=kind)
        self._fence = 1

    def next_spec(self, ranks: int, resume: FoundCheckpoint | None = None, **train: Any) -> SegmentSpec:
        self._fence += 1
        settings = {"microbatches": MICROBATCHES, "steps": STEPS, "every_steps": 5, **train}
        folder = self._folder / f"segment-{self._fence}"
        spec = make_spec(self.store, self.dataset, folder, self._fence, resume, ranks=ranks, **settings)
        self.train_config = spec.train
        return spec

    def train(
        self,
        ranks: int,
        resume: FoundCheckpoint | None = None,
        target: Callable[[SegmentSpec, World], Any] | None = None,
        **train: Any,
    ) -> dict[int, FoundCheckpoint]:
        """A segment to its end, by ranks that call `target`; its checkpoints by their step."""
        spec = self.next_spec(ranks, resume, **train)
        outcome = train_forked(spec, self.store, target)
        assert (outcome.outcome, outcome.world_size) == ("completed", ranks), read_log(spec)
        return self.checkpoints_of(spec)

    def checkpoints_of(self, spec: SegmentSpec) -> dict[int, FoundCheckpoint]:
        found = find_complete_checkpoints(self.store, spec.run, spec.fence)
        return {checkpoint.index.step: checkpoint for checkpoint in found}

    def newest_of(self, spec: SegmentSpec) -> FoundCheckpoint:
        return find_complete_checkpoints(self.store, spec.run, spec.fence)[0]

    def ledger(self, checkpoint: FoundCheckpoint) -> tuple[pa.Table, list[LedgerHeader]]:
        """All that was consumed up to a checkpoint, and the headers of its parts, both from step 0 on."""
        parts = list(walk_ledger(self.store, checkpoint.index.ledger))[::-1]
        return pa.concat_tables([pq.read_table(path) for _, path, _ in parts]), [header for _, _, header in parts]


def require_the_same(actual: FoundCheckpoint, expected: FoundCheckpoint, runs: Runs) -> None:
    """Every byte of weights, optimizer and state, and every row of the ledger."""
    verify_checkpoint(runs.store, actual.path, actual.digest)
    assert actual.index.files == expected.index.files, f"{actual.path} is not {expected.path}"
    assert runs.ledger(actual)[0].equals(runs.ledger(expected)[0])


def tensors_of(store: LocalStore, found: FoundCheckpoint) -> list[Path]:
    """The files of model and optimizer."""
    return [store.fetch(f"{found.path}/{name}") for name in found.index.tensor_files]
