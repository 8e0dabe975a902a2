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
    weights: set[int] = set()

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage.nbytes()
        held.append(tensor)  # lest another storage gets the same address
        return tensor

    held: list[Tensor] = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.random.fork_rng(devices=[]):
        held += [mode.from_tensor(parameter) for parameter in model.parameters()]  # trained or not
        weights |= {tensor.untyped_storage()._cdata for tensor in held}
        on_device = microbatch.to(precision.device)
        with saved_tensors_hooks(count, lambda tensor: tensor), precision.autocast():
            held.append(model(on_device))
    return sum(storages.values())
