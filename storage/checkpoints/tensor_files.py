"""Safetensors files read as bytes: hashes and checks that need neither torch nor the memory of a whole file.

Format: 8 bytes little-endian length of the header, the header as JSON {name: {dtype, shape, data_offsets}}, then the
tensors' bytes (https://github.com/huggingface/safetensors#format). Invariant: nothing here trusts a length that the
file's own size does not confirm.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from storage.errors import CorruptObjectError

# Bytes of one element, and for floats the unsigned integer type and the mask of the exponent's bits.
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
EXPONENT_MASKS: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "F64": (np.uint64, 0x7FF0000000000000),
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
# How NumPy reads one element; it has no BF16, which is the upper half of an F32.
NUMBER_TYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
CHUNK_ITEMS = 1 << 22


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor stands in the file; `start` and `end` are absolute byte positions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class WeightsDistance:
    """How far two models' tensors are from each other; zero where all numbers are equal.

    `relative_l2` is the norm of the difference over the larger of the two norms, all tensors taken as one vector;
    `largest_in` names the tensor with the largest difference of one number.
    """

    relative_l2: float
    largest_difference: float
    largest_in: str | None


def read_entries(path: Path) -> list[TensorEntry]:
    """The tensors of a file in the order of their names. Raises `CorruptObjectError` if the layout makes no sense."""
    with path.open("rb") as file:
        return find_entries(file, path.stat().st_size, str(path))


def find_entries(file: BinaryIO, size: int, path: str) -> list[TensorEntry]:
    """As `read_entries`, for an open file of `size` bytes; `path` is for messages."""
    header_bytes = int.from_bytes(file.read(8), "little")
    if size < 8 or header_bytes > size - 8:
        raise CorruptObjectError(f"{path} is not a safetensors file: its header does not fit into {size} bytes.")
    header = file.read(header_bytes)
    try:
        described = json.loads(header)
        entries = [_parse_entry(name, entry, 8 + header_bytes) for name, entry in described.items() if name[:2] != "__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObjectError(f"{path} is not a safetensors file: its header cannot be read.") from error
    for entry in entries:
        expected = math.prod(entry.shape) * ITEM_BYTES[entry.dtype]
        if entry.end - entry.start != expected or not 0 <= entry.start <= entry.end <= size:
            raise CorruptObjectError(f"{path}: tensor {entry.name!r} is not at the offset in the header.")
    return sorted(entries, key=lambda entry: entry.name)


def weights_sha256(paths: Sequence[Path]) -> str:
    """SHA-256 over name, type, shape and bytes of every tensor of these files, in the order of the names.

    It depends on the tensors alone, not on how files lay them out, so two runs can be compared by it.
    """
    digest = hashlib.sha256()
    for entry, data in _map_tensors(paths):
        digest.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
        digest.update(data.data)
    return digest.hexdigest()


def find_non_finite(path: Path, but_for: Collection[str] = ()) -> str | None:
    """Name of the first tensor with a NaN or an infinity, `but_for` those that may have some; or None."""
    for entry, data in _map_tensors([path]):
        if entry.name not in but_for and entry.dtype in EXPONENT_MASKS and _has_non_finite(data, entry.dtype):
            return entry.name
    return None


def weights_distance(paths: Sequence[Path], others: Sequence[Path]) -> WeightsDistance:
    """Compare the tensors of some files with the same tensors in others, in 64-bit floats and constant memory.

    Infinities that both have, as in a mask, are left out. Raises `ValueError` if names, types or shapes differ: then
    there is no distance.
    """
    tensors, twins = _map_tensors(paths), _map_tensors(others)
    if [_kind(entry) for entry, _ in tensors] != [_kind(twin) for twin, _ in twins]:
        raise ValueError(f"{paths[0].parent} and {others[0].parent} do not hold the same tensors")
    squares = np.zeros(3)  # of the one, of the other, of their difference
    largest, largest_in = 0.0, None
    for (entry, data), (_, other_data) in zip(tensors, twins, strict=True):
        for ours, theirs in zip(_numbers(data, entry), _numbers(other_data, entry), strict=True):
            ours, theirs = _without_equal_infinities(ours, theirs)
            difference = ours - theirs
            squares += [ours @ ours, theirs @ theirs, difference @ difference]
            if np.abs(difference).max() > largest:
                largest, largest_in = float(np.abs(difference).max()), entry.name
    norm = math.sqrt(max(squares[0], squares[1]))
    return WeightsDistance(math.sqrt(squares[2]) / norm if norm else 0.0, largest, largest_in)


def _without_equal_infinities(
    ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    is_same = (ours == theirs) & np.isinf(ours)
    return (np.where(is_same, 0.0, ours), np.where(is_same, 0.0, theirs)) if is_same.any() else (ours, theirs)


def _map_tensors(paths: Sequence[Path]) -> list[tuple[TensorEntry, NDArray[np.uint8]]]:
    """All tensors of some files with their bytes, in the order of the names. Bytes are read when they are looked at."""
    found = []
    for path in paths:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        found += [(entry, data[entry.start : entry.end]) for entry in read_entries(path)]
    return sorted(found, key=lambda tensor: tensor[0].name)


def _kind(entry: TensorEntry) -> tuple[str, str, tuple[int, ...]]:
    return entry.name, entry.dtype, entry.shape


def _numbers(data: NDArray[np.uint8], entry: TensorEntry) -> Iterator[NDArray[np.float64]]:
    """A tensor's numbers as 64-bit floats, in chunks that are never empty."""
    items = np.frombuffer(data, dtype=NUMBER_TYPES[entry.dtype])
    for start in range(0, len(items), CHUNK_ITEMS):
        chunk = items[start : start + CHUNK_ITEMS]
        if entry.dtype == "BF16":
            chunk = (chunk.astype(np.uint32) << 16).view(np.float32)
        yield chunk.astype(np.float64)


def _has_non_finite(data: NDArray[np.uint8], dtype: str) -> bool:
    kind, mask = EXPONENT_MASKS[dtype]
    bits = np.frombuffer(data, dtype=kind)
    chunks = (bits[start : start + CHUNK_ITEMS] for start in range(0, len(bits), CHUNK_ITEMS))
    return any(bool(np.any((chunk & kind(mask)) == kind(mask))) for chunk in chunks)


def _parse_entry(name: str, entry: dict[str, object], data_start: int) -> TensorEntry:
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or entry["dtype"] not in ITEM_BYTES:
        raise ValueError(name)
    start, end = offsets
    return TensorEntry(name, str(entry["dtype"]), tuple(int(n) for n in shape), data_start + start, data_start + end)
