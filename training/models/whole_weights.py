"""The weights of an exported folder where a checkpoint has only those that are trained.

Invariant: every tensor of the model is there once; where it is there in training too, with the bits that it has there.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from storage.checkpoints.checkpoints import MODEL_STEM
from training.models.source import ModelSource
from training.tensor_files import write_tensors


def write_whole(paths: Sequence[Path], folder: Path, source: ModelSource) -> list[str]:
    """Write what the files at `paths` have, all tensors of a model of `source`, into `folder`; the new files' names."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        tensors |= load_file(path)
    return [path.name for path in write_tensors(source.weights_to_export(tensors), MODEL_STEM, folder)]
