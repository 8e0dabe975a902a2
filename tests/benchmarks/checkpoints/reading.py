"""Reading the files of a checkpoint in other ways than a restore does, to compare it with."""

import os
from pathlib import Path

import torch
from torch import Tensor


def read_all(paths: list[Path]) -> None:
    """Into memory that holds them all, as a restore must: getting that memory takes as long as reading."""
    held = []
    for path in paths:
        held.append(torch.empty(path.stat().st_size, dtype=torch.uint8))
        _read_into(held[-1], path)


def read_and_forget(paths: list[Path]) -> None:
    """Into the same memory again and again, which costs less and leaves nothing to go on with."""
    data = torch.empty(max(path.stat().st_size for path in paths), dtype=torch.uint8)
    for path in paths:
        _read_into(data, path)


def let_go_of(paths: list[Path]) -> None:
    """Take the files out of the page cache, as a machine that was switched off has done."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_into(data: Tensor, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        file.readinto(data.numpy().data)
