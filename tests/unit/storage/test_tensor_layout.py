"""The layout of tensors in safetensors files: what the library reads, and a function of the tensors alone."""

import random

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.checkpoints import tensor_layout
from storage.checkpoints.tensor_files import ITEM_BYTES
from storage.checkpoints.tensor_layout import TensorKind, lay_out, tensor_file_names
from training.checkpointing.state_tensors import HostFile, view_tensors
from training.tensor_files import DTYPES

KINDS = st.builds(TensorKind, st.sampled_from(sorted(ITEM_BYTES)), st.lists(st.integers(0, 9), max_size=3).map(tuple))


def test_the_library_reads_what_is_laid_out() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"layer.{number}.{dtype}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for dtype in DTYPES
        for number, shape in enumerate([(), (3,), (5, 7), (0, 4)])
    }
    kinds = {name: TensorKind(DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    (layout,) = lay_out("model", kinds)
    file = HostFile(layout)
    for name, view in view_tensors(file.data, layout.entries).items():
        view.copy_(tensors[name])
    read = safetensors.torch.load(file.data.numpy().tobytes())
    assert read.keys() == tensors.keys()
    assert all(read[name].dtype == tensor.dtype and read[name].equal(tensor) for name, tensor in tensors.items())


@given(st.dictionaries(st.text(min_size=1, max_size=5), KINDS, max_size=12), st.integers(1, 400), st.randoms())
def test_every_tensor_is_in_one_file_aligned_and_without_a_gap(
    tensors: dict[str, TensorKind], file_bytes: int, shuffle: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_layout, "FILE_BYTES", file_bytes)
        files = lay_out("model", tensors)
        shuffled = list(tensors.items())
        shuffle.shuffle(shuffled)
        assert lay_out("model", dict(shuffled)) == files
    assert sorted(entry.name for file in files for entry in file.entries) == sorted(tensors)
    assert tensor_file_names([*(file.name for file in files), "optimizer.safetensors", "index.json"], "model") == [
        file.name for file in files
    ]
    for file in files:
        position = len(file.header)
        for entry in file.entries:
            assert entry.start == position and entry.start % ITEM_BYTES[entry.dtype] == 0
            position = entry.end
        assert position == file.num_bytes
        assert len(file.entries) <= 1 or file.num_bytes - len(file.header) <= file_bytes
