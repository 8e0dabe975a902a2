"""The bytes that a model keeps between forward and backward of a microbatch.

Counted by running the forward pass on tensors without memory, so also where no memory is left. Invariant: the model and
the microbatch stay as they are, and nothing is computed.
"""

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from training.batches.tensors import Microbatch
from training.models.precision import Precision


def count_kept_bytes(model: nn.Module, microbatch: Microbatch, precision: Precision) -> int:
    """What backward will need, without the weights; of equal storage once. The model must not be compiled."""
    # Loading it takes a second, which only a rank that fails has to wait for.
    from torch._subclasses.fake_tensor import FakeTensorMode

    storages: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        if not (tensor.requires_grad and tensor.is_leaf):  # not a weight
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
        held.append(tensor)  # lest another storage gets the same address
        return tensor

    held: list[Tensor] = []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]):
        on_device = microbatch.to(precision.device)
        with saved_tensors_hooks(count, lambda tensor: tensor), precision.autocast():
            held.append(model(on_device))
    return sum(storages.values())
