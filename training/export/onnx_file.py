"""A model as an ONNX file, for whoever serves it without Python or torch.

Invariant: it is the network of the exported folder, for any number of samples of any length, and gives its answers up
to rounding. What it takes is what `holdfast_inputs.py` makes of rows: that part is in no ONNX file.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from storage.datasets import Target
from storage.errors import ConfigurationError
from training.export.standalone.holdfast_model import load_network
from training.export.standalone.holdfast_network import PaddedNetwork
from training.targets.kind import TargetKind
from training.targets.registry import kind_of

ONNX_FILE = "model.onnx"
LIBRARIES = ("onnx", "onnxscript")
# Beyond it weights go into a file of their own: protobuf takes no more than 2 GiB.
LARGEST_EMBEDDED = 1 << 30
# Neither 1, which would be taken to be 1 always, nor equal to each other.
EXAMPLE_SAMPLES, EXAMPLE_TOKENS = 3, 5


class _Probabilities(nn.Module):
    """The network with what follows it."""

    def __init__(self, network: PaddedNetwork, kind: TargetKind) -> None:
        super().__init__()
        self.network = network
        self.kind = kind

    def forward(self, tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(tokens, lengths, numeric, categorical)
        return logits, self.kind.probabilities(logits)


def require_libraries() -> None:
    """Raise `ConfigurationError` unless what writes ONNX is installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"An ONNX file needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed. "
            "Install holdfast[export], or export with --no-onnx. Nothing was written."
        )


def write_onnx(folder: Path, target: Target) -> None:
    """Write `model.onnx` into the folder, from the weights that are there, which predict `target`.

    Inputs `tokens` [B, T] int32, `lengths` [B] int64, `numeric` [B, 2K] float32 and `categorical` [B, C] int64, with no
    columns where there are none; outputs `logits` and `probabilities` [B, classes].
    """
    network = load_network(folder)
    sizes = network.sizes
    example = {
        "tokens": torch.ones(EXAMPLE_SAMPLES, EXAMPLE_TOKENS, dtype=torch.int32),
        "lengths": torch.full((EXAMPLE_SAMPLES,), EXAMPLE_TOKENS),
        "numeric": torch.zeros(EXAMPLE_SAMPLES, 2 * sizes.num_numeric),
        "categorical": torch.zeros(EXAMPLE_SAMPLES, len(sizes.category_counts), dtype=torch.int64),
    }
    samples = torch.export.Dim("samples", min=1)
    shapes = {name: {0: samples} for name in example}
    shapes["tokens"] = {0: samples, 1: torch.export.Dim("length", min=1, max=sizes.num_positions)}
    num_bytes = sum(tensor.nbytes for tensor in network.state_dict().values())
    with _in_silence():
        program = torch.onnx.export(
            _Probabilities(network, kind_of(target)).eval(),
            kwargs=example,
            input_names=list(example),
            output_names=["logits", "probabilities"],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
        program.save(folder / ONNX_FILE, external_data=num_bytes > LARGEST_EMBEDDED)


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """torch's exporter and its libraries tell of their own steps and of what they will do in later versions."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        yield
