"""How the tensors of a state are laid out in safetensors files: a pure function of their names, types and shapes.

A large state is cut into files of at most `FILE_BYTES`, so that ranks can share the work of writing and reading them.
Invariant: the number of ranks is not asked for, so the same state gives the same files, byte for byte, on any number.
Format: https://github.com/huggingface/safetensors#format; several files are numbered as its users number theirs.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage.checkpoints.tensor_files import ITEM_BYTES, TensorEntry

FILE_BYTES = 256 * 2**20
# The header is padded to this, so that every tensor behind it begins at a multiple of the size of its numbers.
ALIGNMENT = 8


@dataclass(frozen=True)
class TensorKind:
    """Type, as safetensors calls it, and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class TensorFile:
    """One file: its name, its first bytes, and where each tensor stands behind them."""

    name: str
    header: bytes
    entries: tuple[TensorEntry, ...]

    @property
    def num_bytes(self) -> int:
        return max([len(self.header), *(entry.end for entry in self.entries)])


def lay_out(stem: str, tensors: Mapping[str, TensorKind]) -> list[TensorFile]:
    """The files of `tensors` in the order of their names: STEM.safetensors, or STEM-00001-of-00003.safetensors, ...

    A tensor that is larger than `FILE_BYTES` has a file of its own.
    """
    groups = _group(tensors)
    if len(groups) == 1:
        return [_lay_out_file(f"{stem}.safetensors", groups[0])]
    return [
        _lay_out_file(f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors", group)
        for number, group in enumerate(groups, start=1)
    ]


def tensor_file_names(names: Iterable[str], stem: str) -> list[str]:
    """Those of `names` that `lay_out` gave to `stem`, in order."""
    pattern = re.compile(rf"{re.escape(stem)}(-\d{{5}}-of-\d{{5}})?\.safetensors")
    return sorted(name for name in names if pattern.fullmatch(name))


def _group(tensors: Mapping[str, TensorKind]) -> list[dict[str, TensorKind]]:
    groups: list[dict[str, TensorKind]] = [{}]
    room = FILE_BYTES
    for name, kind in sorted(tensors.items()):
        if groups[-1] and kind.num_bytes > room:
            groups.append({})
            room = FILE_BYTES
        groups[-1][name] = kind
        room -= kind.num_bytes
    return groups


def _lay_out_file(name: str, tensors: Mapping[str, TensorKind]) -> TensorFile:
    """Wide numbers stand before narrow ones: then all are aligned without gaps, which the format forbids."""
    ordered = sorted(tensors.items(), key=lambda item: (-ITEM_BYTES[item[1].dtype], item[0]))
    described, position = {}, 0
    for tensor, kind in ordered:
        end = position + kind.num_bytes
        described[tensor] = {"dtype": kind.dtype, "shape": list(kind.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    start = 8 + len(text)
    entries = []
    for tensor, kind in ordered:
        entries.append(TensorEntry(tensor, kind.dtype, kind.shape, start, start + kind.num_bytes))
        start += kind.num_bytes
    return TensorFile(name, len(text).to_bytes(8, "little") + text, tuple(entries))
