"""Which of a model's tensors training does not change: parameters that are not trained.

Invariant: where the run's own copy of its first weights has them in files of their own, no checkpoint has them again;
else each checkpoint has all tensors.
"""

from torch import Tensor, nn


def tensors_to_save(model: nn.Module, leaves_out_frozen: bool) -> dict[str, Tensor]:
    """The live tensors that a checkpoint holds: all of the model's, or only those that training may change."""
    left_out = frozen_names(model) if leaves_out_frozen else set()
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name not in left_out}


def frozen_names(model: nn.Module) -> set[str]:
    """Names of the parameters that are not trained; one that has several names under each of them."""
    tensors = model.state_dict(keep_vars=True)
    return {name for name, t in tensors.items() if isinstance(t, nn.Parameter) and not t.requires_grad}
