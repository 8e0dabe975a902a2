"""A microbatch of given samples."""

from training.batches.assembled import assemble_samples
from training.batches.microbatches import MicrobatchCut
from training.batches.tensors import Microbatch, to_microbatches
from training.data.samples import Samples


def microbatch_with(samples: Samples, efficiency: float) -> Microbatch:
    """A microbatch of samples sorted by length; in one group, and not flat, where the efficiency is 0."""
    cut = MicrobatchCut(64, efficiency)
    (groups,) = cut.groups([samples.lengths])
    return next(to_microbatches(assemble_samples(samples, [0], [groups], [0]), 0, 1, is_flat=efficiency > 0))
