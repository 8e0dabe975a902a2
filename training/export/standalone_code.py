"""The code that an exported folder has: modules of `training/export/standalone`, and what they compute as ONNX.

Invariant: what is exported is the network that was trained. The ONNX file has it for any number of samples of any
length; it takes what `holdfast_inputs.py` makes of rows, and that part is in no ONNX file.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from storage.datasets import Target
from training.export.onnx_file import write_onnx
from training.targets.kind import TargetKind
from training.targets.registry import kind_of

CODE_PACKAGE = "training.export.standalone"
CODE_FILES = (
    "holdfast_network.py", "holdfast_texts.py", "holdfast_inputs.py", "holdfast_targets.py", "holdfast_model.py",
)  # fmt: skip
# Neither 1, which would be taken to be 1 always, nor equal to each other.
EXAMPLE_SAMPLES, EXAMPLE_TOKENS = 3, 5


def standalone_code(name: str) -> str:
    """The source of a module of `training/export/standalone` as an export has it: beside the others, in no package."""
    source = files(CODE_PACKAGE).joinpath(name).read_text(encoding="utf-8")
    return source.replace(f"from {CODE_PACKAGE}.", "from ")


def write_code(folder: Path, more: Sequence[str] = ()) -> None:
    """Write the code that loads a model and predicts, and `more` modules of the package."""
    for name in (*CODE_FILES, *more):
        (folder / name).write_text(standalone_code(name), encoding="utf-8")


def write_network(folder: Path, target: Target, network: Any, num_positions: int) -> None:
    """Write `model.onnx` into the folder: a network that was loaded from there, which predicts `target`.

    It is called as `PaddedNetwork` is. Inputs `tokens` [B, T] int32, `lengths` [B] int64, `numeric` [B, 2K] float32 and
    `categorical` [B, C] int64, with no columns where there are none; outputs `logits` and `probabilities` [B, classes].
    """
    sizes = network.sizes
    example = {
        "tokens": torch.ones(EXAMPLE_SAMPLES, EXAMPLE_TOKENS, dtype=torch.int32),
        "lengths": torch.full((EXAMPLE_SAMPLES,), EXAMPLE_TOKENS),
        "numeric": torch.zeros(EXAMPLE_SAMPLES, 2 * sizes.num_numeric),
        "categorical": torch.zeros(EXAMPLE_SAMPLES, len(sizes.category_counts), dtype=torch.int64),
    }
    samples = torch.export.Dim("samples", min=1)
    shapes = {name: {0: samples} for name in example}
    shapes["tokens"] = {0: samples, 1: torch.export.Dim("length", min=1, max=num_positions)}
    write_onnx(folder, _Probabilities(network, kind_of(target)), example, shapes)


class _Probabilities(nn.Module):
    """The network with what follows it."""

    def __init__(self, network: nn.Module, kind: TargetKind) -> None:
        super().__init__()
        self.network = network
        self.kind = kind

    def forward(self, tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(tokens, lengths, numeric, categorical)
        return logits, self.kind.probabilities(logits)
