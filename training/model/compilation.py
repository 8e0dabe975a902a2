"""torch.compile, made blind to what a process happened to see before.

Left to itself the compiler decides by the shapes it meets, in the order in which it meets them: what comes first is
compiled for its very shape, later ones for any. A process that resumes meets another order and may compute other bits.
Invariant: everything is compiled from examples that are a function of the run's configuration, before the first step.
A shape that the compiled code does not cover is computed without it, in every process alike. What looks at tokens alone
is compiled for a number of tokens of which the compiler knows nothing: told "any number, for example 4096", it would
choose kernels for 4,096 tokens, and have larger leaves computed without them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from storage.datasets import DatasetManifest
from training.batches.groups import Group
from training.batches.tensors import Leaf
from training.configuration import TrainConfig
from training.data.samples import padded_length
from training.model.classifier import Classifier
from training.model.precision import Precision
from training.standalone.holdfast_network import EncoderBlock


def compile_model(model: Classifier, dataset: DatasetManifest, config: TrainConfig, precision: Precision) -> None:
    """Compile forward and backward of `model`, on the device already, for leaves of any shape."""
    torch.use_deterministic_algorithms(True)  # tells the compiler too, which `choose_precision` does not load
    num_samples = max(2, config.batch_size // config.leaves)
    if config.least_padding_efficiency:
        with compiling_blocks(model.blocks):
            _run(model, [_flat_example(dataset, num_samples, precision.device)], precision)
    else:
        model.compile()
        examples = [_example(dataset, number, precision.device) for number in (num_samples, 1)]  # 1: a shape of its own
        _run(model, examples, precision)
    torch.compiler.set_stance("eager_on_recompile")


def _run(model: Classifier, leaves: list[Leaf], precision: Precision) -> None:
    """Forward and backward, for training and for evaluation: each has kernels of its own."""
    for leaf in leaves:
        for is_training in (True, False):
            model.train(is_training)
            with torch.set_grad_enabled(is_training), precision.autocast():
                logits = model(leaf)
            if is_training:
                logits.float().sum().backward()
    model.train()
    model.zero_grad(set_to_none=True)


@contextmanager
def compiling_blocks(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Compile the parts of blocks that look at tokens alone, for any number of tokens, by what is computed within.

    What lies between, attention over any number of groups, is one kernel for each group and has little to gain.
    """
    compiled = {}
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        parts = [torch.compile(part, dynamic=True) for part in (block.before_mixing, block.after_mixing)]
        compiled[block] = parts
        block.before_mixing, block.after_mixing = map(_hiding_sizes, parts)  # type: ignore[method-assign]
    yield
    for block, parts in compiled.items():
        block.before_mixing, block.after_mixing = parts  # type: ignore[method-assign]


def _hiding_sizes(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function, which hides from the compiler how many tokens it is given."""

    def call(*tensors: Tensor) -> Tensor:
        for tensor in tensors:
            torch._dynamo.decorators.mark_unbacked(tensor, 0)
        return compiled(*tensors)

    return call


def _flat_example(dataset: DatasetManifest, num_samples: int, device: torch.device) -> Leaf:
    """A flat leaf of zeros in one group."""
    leaf = _example(dataset, num_samples, device)
    return replace(leaf, tokens=leaf.tokens.flatten())


def _example(dataset: DatasetManifest, num_samples: int, device: torch.device) -> Leaf:
    """A leaf of zeros, its numbers of samples and of tokens declared to be any."""
    length = padded_length(dataset.max_tokens // 2)
    if length == num_samples:
        num_samples += 1  # equal numbers would be taken to be equal always
    leaf = Leaf(
        index=0,
        rows=np.arange(num_samples),
        ids=b"",
        groups=(Group(num_samples, length),),
        tokens=torch.zeros(num_samples, length, dtype=torch.int32),
        lengths=torch.full((num_samples,), length),
        numeric=torch.zeros(num_samples, 2 * len(dataset.numeric)),
        categorical=torch.zeros(num_samples, len(dataset.categorical), dtype=torch.int64),
        labels=torch.zeros(num_samples, dtype=torch.int64),
    ).to(device)
    if num_samples > 1:
        for tensor in (leaf.tokens, leaf.lengths, leaf.numeric, leaf.categorical):
            _declare_any_size(tensor, 0)
    _declare_any_size(leaf.tokens, 1)
    return leaf


def _declare_any_size(tensor: Tensor, dimension: int) -> None:
    torch._dynamo.mark_dynamic(tensor, dimension)
