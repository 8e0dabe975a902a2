"""A model as an ONNX file, for whoever serves it without Python or torch.

Invariant: it gives the answers of the module that it was made of, up to rounding, for inputs of any size that is
stated.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError

ONNX_FILE = "model.onnx"
LIBRARIES = ("onnx", "onnxscript")
# Beyond it weights go into a file of their own: protobuf takes no more than 2 GiB.
LARGEST_EMBEDDED = 1 << 30


def require_libraries() -> None:
    """Raise `ConfigurationError` unless what writes ONNX is installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"An ONNX file needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed. "
            "Install holdfast[export], or export with --no-onnx. Nothing was written."
        )


def write_onnx(folder: Path, module: nn.Module, example: dict[str, Tensor], shapes: dict[str, Any]) -> None:
    """Write `model.onnx` into the folder: the module, from inputs of these names to logits and probabilities.

    `shapes` has of each input the dimensions that may be others than in the `example`.
    """
    num_bytes = sum(tensor.nbytes for tensor in module.state_dict().values())
    with _in_silence():
        program = torch.onnx.export(
            module.eval(),
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
