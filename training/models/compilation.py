"""torch.compile, made blind to what a process happened to see before.

Left to itself the compiler decides by the shapes it meets, in the order in which it meets them: what comes first is
compiled for its very shape, later ones for any. A process that resumes meets another order and may compute other bits.
Invariant: everything is compiled before the first step, from an example that is a function of the run's configuration,
and for a number of tokens of which the compiler knows nothing: given "any number, for example 4096", it would choose
kernels for up to 4,096 tokens. An input that the compiled code does not take is computed without it, in every process
alike, and that is reported.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from storage.datasets import DatasetManifest
from training.batches.groups import Group
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.data.samples import padded_length
from training.determinism import pin_compiler
from training.models.precision import Precision
from training.models.source import ModelSource


def compile_model(
    source: ModelSource,
    model: nn.Module,
    dataset: DatasetManifest,
    config: TrainConfig,
    precision: Precision,
    folder: Path,
    note: Callable[[str], object],
) -> None:
    """Compile forward and backward of `model`, which is of `source` and on the device already.

    What is compiled is kept in `folder`. `note` is called once if an input is computed without compiled code.
    """
    pin_compiler(folder)
    num_samples = max(2, config.batch_size // config.microbatches)
    microbatch = example_microbatch(dataset, num_samples, is_flat=source.layout == "flat").to(precision.device)
    with source.compiling(model, note):
        for is_training in (True, False):  # each has kernels of its own
            model.train(is_training)
            with torch.set_grad_enabled(is_training), precision.autocast():
                logits = model(microbatch)
            if is_training:
                logits.float().sum().backward()
    model.train()
    model.zero_grad(set_to_none=True)


def example_microbatch(dataset: DatasetManifest, num_samples: int, is_flat: bool) -> Microbatch:
    """A microbatch of zeros in one group."""
    length = padded_length(dataset.max_tokens // 2)
    tokens = torch.zeros(num_samples * length, dtype=torch.int32)
    return Microbatch(
        index=0,
        rows=np.arange(num_samples),
        ids=b"",
        groups=(Group(num_samples, length),),
        tokens=tokens if is_flat else tokens.view(num_samples, length),
        lengths=torch.full((num_samples,), length),
        numeric=torch.zeros(num_samples, 2 * len(dataset.numeric)),
        categorical=torch.zeros(num_samples, len(dataset.categorical), dtype=torch.int64),
        labels=torch.zeros(num_samples, dtype=torch.int64),
        weights=torch.ones(num_samples),
    )
