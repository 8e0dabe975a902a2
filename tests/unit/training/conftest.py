"""What several tests of training start from."""

from pathlib import Path

import numpy as np
import pytest

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from training.batches.blocks import Blocks
from training.data.order import RowOrder
from training.data.reading import SampleReader
from training.data.samples import Samples
from training.data.shared_arrays import ArrayChunks


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty one."""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The positions of each block that this process assembles, for whichever rank."""
    found: list[list[int]] = []
    assemble = Blocks._assemble

    def assemble_and_tell(blocks: Blocks, positions: range) -> ArrayChunks:
        found.append(list(positions))
        return assemble(blocks, positions)

    monkeypatch.setattr(Blocks, "_assemble", assemble_and_tell)
    return found


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(LocalStore(tmp_path / "store"), tmp_path / "work", rows=100)


@pytest.fixture
def samples(dataset: DatasetManifest, tmp_path: Path) -> Samples:
    """The samples of a microbatch, sorted by length."""
    reader = SampleReader(LocalStore(tmp_path / "store"), dataset, "train", tmp_path / "samples")
    found = reader.read(RowOrder(reader.num_rows, reader.group_rows), 0, 40)
    return found.at(np.argsort(found.lengths, kind="stable"))
