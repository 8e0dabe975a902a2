"""Whether what the model calls 80 % comes true in 80 % of the cases: bins of probabilities, and their mean error.

Invariant: every sample is in one bin, and the expected calibration error (Guo et al. 2017, section 2) follows from the
bins alone. Whose probability is claimed is the business of the kind of target.
"""

from typing import Any

import torch
from torch import Tensor

from training.targets.kind import Claims, TargetKind

NUM_BINS = 15
# In float64 a whole test split would take several times the memory that its logits have.
ROWS_AT_A_TIME = 1 << 16


def claims(logits: Tensor, labels: Tensor, temperature: float, kind: TargetKind) -> Claims:
    """What is claimed at this temperature, and whether it came true; `logits` [N, outputs], `labels` [N]."""
    parts = [slice(start, start + ROWS_AT_A_TIME) for start in range(0, len(labels), ROWS_AT_A_TIME)]
    found = [_claims(logits[part], labels[part], temperature, kind) for part in parts]
    claimed, came_true = zip(*found, strict=True)
    return Claims(torch.cat(claimed), torch.cat(came_true))


def fill_bins(claimed: Tensor, came_true: Tensor) -> list[dict[str, Any]]:
    """The bins of equal width with a sample: their samples, the mean claim, and the share that came true. JSON-able."""
    indices = (claimed * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    counts = torch.bincount(indices, minlength=NUM_BINS)
    claimed_sums, true_sums = (
        torch.bincount(indices, weights=values.double(), minlength=NUM_BINS) for values in (claimed, came_true)
    )
    return [
        {
            "from": index / NUM_BINS,
            "to": (index + 1) / NUM_BINS,
            "num_samples": count,
            "claimed": claimed_sums[index].item() / count,
            "came_true": true_sums[index].item() / count,
        }
        for index, count in enumerate(counts.tolist())
        if count
    ]


def calibration_error(bins: list[dict[str, Any]]) -> float:
    """The mean distance between claim and truth, each bin with the weight of its samples."""
    num_samples = sum(one["num_samples"] for one in bins)
    return float(sum(one["num_samples"] * abs(one["claimed"] - one["came_true"]) for one in bins) / num_samples)


def _claims(logits: Tensor, labels: Tensor, temperature: float, kind: TargetKind) -> Claims:
    options, right = kind.decisions(logits, labels)
    return kind.claims(torch.softmax(options / temperature, dim=1), right)
