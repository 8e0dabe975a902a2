"""On a GPU too, a resumed segment ends with the bits of an uninterrupted one, on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import checkpoint_at, make_spec, read_log, train_to_end


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_segment_on_a_gpu_ends_with_the_same_bits(
    ranks: int, precision: str, device: torch.device, tmp_path: Path
) -> None:
    """Two ranks share the GPU through Gloo; the run they take up was begun by one."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    train: dict[str, Any] = {"device": device.type, "precision": precision}
    straight = make_spec(store, dataset, tmp_path / "straight", fence=2, **train)
    assert train_to_end(straight, store).outcome == "completed", read_log(straight)
    point = checkpoint_at(store, 7, 2)
    train |= {"ranks": ranks, "share_gpus": ranks > 1}
    resumed = make_spec(store, dataset, tmp_path / "resumed", fence=3, resume=point, **train)
    assert train_to_end(resumed, store).outcome == "completed", read_log(resumed)
    expected, actual = checkpoint_at(store, 20, 2), checkpoint_at(store, 20, 3)
    assert actual.index.files == expected.index.files
