"""A model as an ONNX file, for servers without Python or torch.

Invariant: it gives the answers of the module that it was made of, up to rounding, for inputs of any size that is
stated. It carries nothing of the machine that wrote it, and its bytes do not depend on where Holdfast is installed.
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
    """The file `model.onnx` in the folder: the module, from inputs of the `example`'s names to logits, probabilities.

    `shapes` has of each input the dimensions that may be others than in the `example`. Weights of more than
    `LARGEST_EMBEDDED` bytes lie in a second file, `model.onnx.data`.
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
        _remove_metadata(program.model)
        program.save(folder / ONNX_FILE, external_data=num_bytes > LARGEST_EMBEDDED)


def _remove_metadata(model: Any) -> None:
    """Remove what torch's exporter records of the Python code: stack traces with absolute paths, names of classes.

    `model` is an `onnx_ir.Model`. Names of inputs, outputs and weights, shapes and types stay.
    """
    model.metadata_props.clear()
    for function in (model.graph, *model.functions.values()):
        for graph in (function, *function.subgraphs()):
            _clear(graph)
            weights = getattr(graph, "initializers", {})  # a function has none
            for value in (*graph.inputs, *weights.values()):
                _clear(value)
        for node in function.all_nodes():
            _clear(node)
            for value in node.outputs:
                _clear(value)


def _clear(item: Any) -> None:
    """Clear both kinds of text that ONNX lets a graph, a node or a value have for people."""
    item.metadata_props.clear()
    item.doc_string = None


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Suppress what torch's exporter and its libraries print of their own steps and warn of for later versions."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        yield
