"""Microbatches as tensors, as the model is given them.

Invariant: microbatches are copies of what was assembled, one for all that are taken at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.batches.assembled import Assembled
from training.batches.groups import Group
from training.data.samples import new_array

TENSORS = ("tokens", "lengths", "numeric", "categorical", "labels", "weights")


@dataclass(frozen=True)
class Microbatch:
    """A part of a batch that goes through the model in one pass: B samples, group after group.

    A microbatch that is flat has N tokens, padding included; one that is not is a single group of length T.
    """

    index: int
    rows: NDArray[np.int64]  # [B] indices in the split
    ids: bytes  # UTF-8, joined by the ledger's separator, as read beside the tokens
    groups: tuple[Group, ...]
    tokens: Tensor  # [N], or [B, T] if it is not flat; int32, 0 is padding
    lengths: Tensor  # [B] int64
    numeric: Tensor  # [B, 2K] float32
    categorical: Tensor  # [B, C] int64
    labels: Tensor  # [B, ...] int64, as the kind of target has them
    weights: Tensor  # [B] float32, in the loss
    starts_at: int = 0  # so many samples the microbatches before it in its batch have

    @property
    def is_flat(self) -> bool:
        """Whether the tokens of all groups stand one after the other."""
        return self.tokens.ndim == 1

    def to(self, device: torch.device) -> "Microbatch":
        """The same microbatch on the device; the copy does not make the CPU wait."""
        tensors = {name: getattr(self, name).to(device, non_blocking=True) for name in TENSORS}
        return replace(self, **tensors)


def to_microbatches(
    assembled: Assembled, first: int, end: int, is_flat: bool, pin: bool = False
) -> Iterator[Microbatch]:
    """The microbatches [first, end), as copies: what is mapped may not be written to, and goes away.

    With `pin` in page-locked memory, from where a GPU can fetch them by itself.
    """
    groups, samples, tokens, ids = assembled.bounds
    start, stop, first_token = samples[first], samples[end], tokens[first]
    own_tokens = new_array(tokens[end] - first_token, np.int32)
    own_tokens[...] = assembled.tokens[first_token : tokens[end]]
    own_ids = assembled.ids[ids[first] : ids[end]].tobytes()
    rows = assembled.rows[start:stop].copy()
    numeric, weights = assembled.numeric[start:stop].copy(), assembled.weights[start:stop].copy()
    lengths, categorical = (array[start:stop].copy() for array in (assembled.lengths, assembled.categorical))
    labels = assembled.labels[start:stop].astype(np.int64)
    own: list[Any] = [own_tokens, lengths, numeric, categorical, labels, weights]
    # Arrays are parted, not tensors: compiled code would notice that a tensor begins within another one.
    as_tensor: Callable[[Any], Tensor] = torch.from_numpy
    if pin:
        own, as_tensor = [torch.from_numpy(array).pin_memory() for array in own], _itself
    own_tokens, lengths, numeric, categorical, labels, weights = own
    own_groups = assembled.groups(groups[first], groups[end])
    numbers = zip(assembled.indices[first:end].tolist(), assembled.starts[first:end].tolist(), strict=True)
    for microbatch, (index, starts_at) in enumerate(numbers, first):
        of_samples = slice(samples[microbatch] - start, samples[microbatch + 1] - start)
        flat = as_tensor(own_tokens[tokens[microbatch] - first_token : tokens[microbatch + 1] - first_token])
        yield Microbatch(
            index,
            rows[of_samples],
            own_ids[ids[microbatch] - ids[first] : ids[microbatch + 1] - ids[first] - 1],
            tuple(own_groups[groups[microbatch] - groups[first] : groups[microbatch + 1] - groups[first]]),
            flat if is_flat else flat.view(of_samples.stop - of_samples.start, -1),
            as_tensor(lengths[of_samples]),
            as_tensor(numeric[of_samples]),
            as_tensor(categorical[of_samples]),
            as_tensor(labels[of_samples]),
            as_tensor(weights[of_samples]),
            starts_at,
        )


def _itself(tensor: Tensor) -> Tensor:
    return tensor
