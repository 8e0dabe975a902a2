"""torch.compile, made blind to what a process happened to see before.

Left to itself the compiler decides by the shapes it meets, in the order in which it meets them: what comes first is
compiled for its very shape, later ones for any. A process that resumes meets another order and may compute other bits.
Invariant: everything is compiled before the first step, from an example that is a function of the run's configuration,
and for a number of tokens of which the compiler knows nothing: told "any number, for example 4096", it would choose
kernels for up to 4,096 tokens. An input that the compiled code does not take is computed without it, in every process
alike, and that is reported.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from storage.datasets import DatasetManifest
from training.batches.groups import Group
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.data.samples import padded_length
from training.determinism import pin_compiler
from training.export.standalone.holdfast_network import EncoderBlock
from training.models.classifier import Classifier
from training.models.precision import Precision

Note = Callable[[str], object]


def compile_model(
    model: Classifier, dataset: DatasetManifest, config: TrainConfig, precision: Precision, folder: Path, note: Note
) -> None:
    """Compile forward and backward of `model`, on the device already, for microbatches of any shape.

    What is compiled is kept in `folder`. `note` is called once if an input is computed without compiled code.
    """
    pin_compiler(folder)
    microbatch = _example(dataset, max(2, config.batch_size // config.microbatches)).to(precision.device)
    with compiling_blocks(model.blocks, note):
        for is_training in (True, False):  # each has kernels of its own
            model.train(is_training)
            with torch.set_grad_enabled(is_training), precision.autocast():
                logits = model(microbatch)
            if is_training:
                logits.float().sum().backward()
    model.train()
    model.zero_grad(set_to_none=True)


@contextmanager
def compiling_blocks(blocks: Iterable[nn.Module], note: Note) -> Iterator[None]:
    """Compile the parts of blocks that look at tokens alone, by what is computed within, and nothing afterwards.

    What lies between, attention over any number of groups, is one kernel for each group and has little to gain.
    """
    compiled, noting = [], _noting_once(note)
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        before, after = (CompiledPart(part, noting) for part in (block.before_mixing, block.after_mixing))
        block.before_mixing, block.after_mixing = before, after  # type: ignore[method-assign, assignment]
        compiled += [before, after]
    yield
    for part in compiled:
        part.is_compiling = False
    torch.compiler.set_stance("eager_on_recompile")


class CompiledPart:
    """A function of vectors of tokens [N, D] or [B, T, D], each [.., D'], compiled as one of [N, D] with any N."""

    def __init__(self, function: Callable[..., Tensor], note: Callable[[int], object]) -> None:
        self.is_compiling = True

        def compute(*tensors: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                note(len(tensors[0]))
            return function(*tensors)

        self._compute = torch.compile(compute, dynamic=True)

    def __call__(self, *tensors: Tensor) -> Tensor:
        flat = [tensor.flatten(0, -2) for tensor in tensors]
        if self.is_compiling:
            for tensor in flat:
                torch._dynamo.decorators.mark_unbacked(tensor, 0)
        result: Tensor = self._compute(*flat)
        return result.reshape(*tensors[0].shape[:-1], result.shape[-1])


def _noting_once(note: Note) -> Callable[[int], None]:
    sizes: list[int] = []

    def without_compiled_code(num_tokens: int) -> None:
        sizes.append(num_tokens)
        if len(sizes) == 1:
            note(
                f"train.compile: the compiled code does not take a microbatch of {num_tokens:,} tokens, which is "
                "computed without it, in every process alike: slower than with it, and the model is the same on any "
                "number of ranks. Others like it are not reported."
            )

    return without_compiled_code


def _example(dataset: DatasetManifest, num_samples: int) -> Microbatch:
    """A flat microbatch of zeros in one group."""
    length = padded_length(dataset.max_tokens // 2)
    return Microbatch(
        index=0,
        rows=np.arange(num_samples),
        ids=b"",
        groups=(Group(num_samples, length),),
        tokens=torch.zeros(num_samples * length, dtype=torch.int32),
        lengths=torch.full((num_samples,), length),
        numeric=torch.zeros(num_samples, 2 * len(dataset.numeric)),
        categorical=torch.zeros(num_samples, len(dataset.categorical), dtype=torch.int64),
        labels=torch.zeros(num_samples, dtype=torch.int64),
    )
