"""What several tests of training start from."""

from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from training.batches.blocks import Blocks
from training.data.shared_arrays import Pieces


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty one."""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The positions of each block that this process assembles, for whichever rank."""
    found: list[list[int]] = []
    assemble = Blocks._assemble

    def assemble_and_tell(blocks: Blocks, positions: range) -> Pieces:
        found.append(list(positions))
        return assemble(blocks, positions)

    monkeypatch.setattr(Blocks, "_assemble", assemble_and_tell)
    return found
