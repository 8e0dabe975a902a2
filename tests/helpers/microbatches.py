"""A leaf of given samples."""

from training.batches.assembled import assemble_samples
from training.batches.microbatches import LeafCut
from training.batches.tensors import Leaf, to_leaves
from training.data.samples import Samples


def leaf_with(samples: Samples, efficiency: float) -> Leaf:
    """Of samples sorted by length; in one group, and not flat, where the efficiency is 0."""
    cut = LeafCut(64, efficiency)
    (groups,) = cut.groups([samples.lengths])
    return next(to_leaves(assemble_samples(samples, [0], [groups]), 0, 1, is_flat=efficiency > 0))
