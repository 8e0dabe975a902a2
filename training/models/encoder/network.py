"""The encoder as training uses it: the network of `training/export/standalone`, given a microbatch; its compilation.

Invariant: a sample's logits do not depend on the microbatch it was padded in, up to rounding. Attention sees the groups
of a microbatch one after the other, all other layers see the microbatch as a whole: so groups cost no second pass over
the weights.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from storage.datasets import FIRST_VOCABULARY_INDEX, DatasetManifest
from training.batches.tensors import Microbatch
from training.data.samples import padded_length
from training.export.standalone.holdfast_network import (
    Architecture,
    EncoderBlock,
    Network,
    mask_of,
    mean_over_real_tokens,
)
from training.model_configuration import EncoderConfig
from training.models.compiled_part import CompiledPart, end_compiling, noting_once


class Classifier(Network):
    """Network from a microbatch to logits [B, num_outputs]."""

    def forward(self, microbatch: Microbatch) -> Tensor:
        pooled = self._pool_flat(microbatch) if microbatch.is_flat else self.pool(microbatch.tokens, microbatch.lengths)
        return self.classify(pooled, microbatch.numeric, microbatch.categorical)

    def _pool_flat(self, microbatch: Microbatch) -> Tensor:
        """A vector for each sample, [B, D], of a flat microbatch, whose groups stand one after the other."""
        counts, sizes = (
            [group.num_samples for group in microbatch.groups],
            [group.num_tokens for group in microbatch.groups],
        )
        positions = [torch.arange(group.length, device=microbatch.tokens.device) for group in microbatch.groups]
        are_real = [
            p < lengths[:, None] for p, lengths in zip(positions, torch.split(microbatch.lengths, counts), strict=True)
        ]
        masks = tuple(mask_of(is_real, p) for is_real, p in zip(are_real, positions, strict=True))
        repeated = torch.cat([p.repeat(count) for p, count in zip(positions, counts, strict=True)])
        parts = torch.split(self.encode(microbatch.tokens, repeated, masks), sizes)
        pooled = [
            mean_over_real_tokens(part.view(*is_real.shape, -1), is_real)
            for part, is_real in zip(parts, are_real, strict=True)
        ]
        return torch.cat(pooled)


def architecture_of(config: EncoderConfig, dataset: DatasetManifest, num_outputs: int) -> Architecture:
    """All sizes of the network: those that are configured, and those that follow from the data set."""
    return Architecture(
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        feedforward=config.feedforward,
        dropout=config.dropout,
        metadata_width=config.metadata_width,
        vocabulary_size=dataset.vocabulary_size,
        num_positions=padded_length(dataset.max_tokens),
        num_numeric=len(dataset.numeric),
        category_counts=tuple(len(column.vocabulary) + FIRST_VOCABULARY_INDEX for column in dataset.categorical),
        num_outputs=num_outputs,
    )


@contextmanager
def compiling_blocks(blocks: Iterable[nn.Module], note: Callable[[str], object]) -> Iterator[None]:
    """Compile the parts of blocks that look at tokens alone, by what is computed within, and nothing afterwards.

    What lies between, attention over any number of groups, is one kernel for each group and has little to gain.
    """
    compiled, noting = [], noting_once(note)
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        before, after = (CompiledPart(part, noting) for part in (block.before_mixing, block.after_mixing))
        block.before_mixing, block.after_mixing = before, after  # type: ignore[method-assign, assignment]
        compiled += [before, after]
    yield
    end_compiling(compiled)
