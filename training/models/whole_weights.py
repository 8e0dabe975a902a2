"""The weights of an exported folder where a checkpoint has only those that are trained.

Invariant: every tensor of the model is there once, under the name and with the bits that it has in training.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from storage.checkpoints.checkpoints import MODEL_STEM
from training.tensor_files import write_tensors


def write_whole(paths: Sequence[Path], folder: Path) -> list[str]:
    """Write what the files at `paths` have, each tensor in one of them, into `folder`; the names of the new files."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        tensors |= load_file(path)
    return [path.name for path in write_tensors(tensors, MODEL_STEM, folder)]
