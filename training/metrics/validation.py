"""Predictions for a whole split, by all ranks together.

Invariant: how the split is cut into forward passes depends on the split and the configuration alone, so every number is
the same on any number of ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.batches.assembled import assemble_shares, share_batch
from training.batches.microbatches import MicrobatchCut
from training.batches.tensors import Microbatch, to_microbatches
from training.collectives import all_reduce
from training.data.order import RowOrder
from training.data.reading import SampleReader
from training.metrics.scores import score
from training.models.precision import Precision
from training.rank_status import Collective
from training.targets.kind import TargetKind
from training.validation_configuration import ValidationConfig
from training.world import World

# Samples are sorted by length within windows of so many forward passes: little padding, bounded memory.
WINDOW_PASSES = 16


class Predicted(NamedTuple):
    """Predictions for all samples of a split in one fixed order, on the CPU."""

    logits: Tensor  # [N, outputs] fp32
    labels: Tensor  # [N, ...] int64, as the kind of target has them
    categorical: Tensor  # [N, columns] int64: of the metadata columns that were asked for


class Validator:
    """Looks at one split with the model as it is."""

    def __init__(
        self,
        reader: SampleReader,
        cut: MicrobatchCut,
        kind: TargetKind,
        precision: Precision,
        config: ValidationConfig,
        world: World,
    ) -> None:
        self.num_samples = min(reader.num_rows, config.max_samples or reader.num_rows)
        self._reader = reader
        self._order = RowOrder(reader.num_rows, reader.group_rows, self.num_samples)
        self._cut = cut
        self._kind = kind
        self._precision = precision
        self._batch_size = config.batch_size
        self._world = world

    def validate(self, model: nn.Module, goes_on: Callable[[], bool]) -> dict[str, float] | None:
        """Metrics of the split, or None if all ranks agreed to stop meanwhile. A collective.

        `goes_on` is asked before each window of the split, by all ranks, and has the same answer on all.
        """
        predicted = self.predict(model, goes_on)
        return None if predicted is None else score(predicted.logits, predicted.labels, self._kind)

    def predict(self, model: nn.Module, goes_on: Callable[[], bool], columns: Sequence[int] = ()) -> Predicted | None:
        """What is predicted, beside it the categorical columns with these indices; None as in `validate`."""
        model.eval()
        try:
            rows = self._predict_own_rows(model, goes_on, columns)
        finally:
            model.train()
        if rows is None:
            return None
        # Each row was filled in by one rank and is zero on all others: the sum is exact.
        all_reduce(rows, self._world, Collective.PREDICTIONS)
        label = self._kind.num_outputs
        first_column = label + self._label_width
        labels = rows[:, label:first_column].reshape(-1, *self._kind.label_shape)
        return Predicted(rows[:, :label], labels.long(), rows[:, first_column:].long())

    @torch.no_grad()
    def _predict_own_rows(self, model: nn.Module, goes_on: Callable[[], bool], columns: Sequence[int]) -> Tensor | None:
        label = self._kind.num_outputs
        first_column = label + self._label_width
        rows = torch.zeros(self.num_samples, first_column + len(columns))
        for microbatches in self._windows():
            if not goes_on():
                return None
            for microbatch in microbatches:
                with self._precision.autocast():
                    logits = model(microbatch.to(self._precision.device))
                rows[microbatch.rows, :label] = logits.float().cpu()
                rows[microbatch.rows, label:first_column] = microbatch.labels.reshape(-1, self._label_width).float()
                for index, column in enumerate(columns, first_column):
                    rows[microbatch.rows, index] = microbatch.categorical[:, column].float()
        return rows

    @property
    def _label_width(self) -> int:
        """Numbers that a sample's label has."""
        return math.prod(self._kind.label_shape)

    def _windows(self) -> Iterator[list[Microbatch]]:
        """This rank's microbatches of each window."""
        window_rows = self._batch_size * WINDOW_PASSES
        for start in range(0, self.num_samples, window_rows):
            count = min(window_rows, self.num_samples - start)
            samples = self._reader.read(self._order, start, count)
            shares = share_batch(samples.lengths, self._cut, -(-count // self._batch_size), self._world.size)
            share = shares[self._world.rank]
            assembled = assemble_shares(samples, [share], [0])
            yield list(to_microbatches(assembled, 0, len(share.indices), self._cut.padding_efficiency > 0))
