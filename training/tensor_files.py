"""Tensors of torch as safetensors files: what their types are called there, and writing them.

Invariant: which file has which tensor follows from names, types and shapes alone.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from storage.checkpoints.tensor_layout import TensorKind, lay_out

# Type -> what safetensors calls it.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {name: dtype for dtype, name in DTYPES.items()}


def kind_of(tensor: Tensor) -> TensorKind:
    """Type and shape, as safetensors calls them."""
    return TensorKind(DTYPES[tensor.dtype], tuple(tensor.shape))


def write_tensors(tensors: Mapping[str, Tensor], stem: str, folder: Path) -> list[Path]:
    """Write the tensors into files of `folder`, named and cut as those of a checkpoint are. No tensors: no file.

    Tensors that share memory are written each for itself.
    """
    paths = []
    for file in lay_out(stem, {name: kind_of(tensor) for name, tensor in tensors.items()}) if tensors else []:
        path = folder / file.name
        own = {entry.name: tensors[entry.name].detach().clone().contiguous() for entry in file.entries}
        # What transformers asks of a file of weights.
        save_file(own, path, metadata={"format": "pt"})
        paths.append(path)
    return paths
