"""The user's module as training uses it: built by his function, and given a microbatch.

Invariant: its tensors keep the names that they have in the module, so checkpoints and exports have the user's own; and
what cannot be trained exactly by its very form is refused by name here.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from storage.datasets import FIRST_VOCABULARY_INDEX, DatasetManifest
from storage.errors import ConfigurationError
from training.batches.tensors import Microbatch
from training.data.samples import padded_length
from training.export.standalone.holdfast_module import ModelInputs, argument_names, arguments_of
from training.model_configuration import ModuleConfig
from training.own_code import load_function, own_errors, require_pinned

STORED_TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def inputs_of(dataset: DatasetManifest, num_outputs: int) -> ModelInputs:
    """What a module for this data set is built for."""
    return ModelInputs(
        vocabulary_size=dataset.vocabulary_size,
        max_tokens=padded_length(dataset.max_tokens),
        num_outputs=num_outputs,
        classes=tuple(dataset.target.classes),
        numeric=tuple(column.name for column in dataset.numeric),
        categorical={column.name: len(column.vocabulary) + FIRST_VOCABULARY_INDEX for column in dataset.categorical},
    )


def build_module(config: ModuleConfig, inputs: ModelInputs) -> nn.Module:
    """The module as its factory makes it, in training mode. Raises `ConfigurationError` for one that is refused."""
    factory = load_function(config.reference, config.pin)
    files = require_pinned(config.reference, config.pin).values()
    with own_errors(f"{config.reference.name} could not build the module", files):
        module = factory(inputs, **config.options)
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"{config.reference.name} returned {type(module).__name__}, expected a torch.nn.Module."
        )
    _require_trainable(module)
    return module.train()


def build_classifier(config: ModuleConfig, inputs: ModelInputs) -> nn.Module:
    """The module, whose forward pass takes a `Microbatch`."""
    module = build_module(config, inputs)
    try:
        names = argument_names(module)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{config.reference.name} builds what cannot be called: {error}") from error
    forward: Any = module.forward

    def forward_of_microbatch(microbatch: Microbatch) -> Tensor:
        given = microbatch.tokens, microbatch.lengths, microbatch.numeric, microbatch.categorical
        result: Tensor = forward(*arguments_of(names, *given))
        return result

    # Not in a module around it, by which all names would begin with that one's.
    module.forward = forward_of_microbatch
    return module


def _require_trainable(module: nn.Module) -> None:
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for name, tensor in (parameters | buffers).items():
        if is_lazy(tensor):
            raise _refused(f"the size of {name!r} is not known before the first forward pass: a lazy layer", "name it")
        if tensor.dtype not in STORED_TYPES:
            raise _refused(f"{name!r} is of type {tensor.dtype}", "checkpoints hold real numbers and booleans")
    for name, parameter in parameters.items():
        if parameter.requires_grad and parameter.dtype is not torch.float32:
            raise _refused(
                f"the parameter {name!r} is of type {parameter.dtype}",
                "trained weights are float32; train.precision says in which type they are computed",
            )
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise _refused("no parameter requires a gradient", "there would be nothing to train")
    sparse = [name for name, part in module.named_modules() if getattr(part, "sparse", False)]
    if sparse:
        raise _refused(f"the layer {sparse[0]!r} has sparse gradients", "the exact sum adds whole ones: sparse=False")


def _refused(problem: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"The module cannot be trained: {problem}; {why}.")
