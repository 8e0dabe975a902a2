"""What checkpoints may take is no less than those that always stay; how large one is follows from the optimizer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from training.configuration import CheckpointConfig, TrainConfig
from training.optim.checkpoint_budget import least_checkpoint_bytes, require_budget, require_room
from training.optim.optimization import Optimization


@pytest.mark.parametrize(("keep_best", "least"), [(1, 36_000), (0, 24_000)])
def test_a_budget_below_the_checkpoints_that_always_stay_is_refused(keep_best: int, least: int) -> None:
    require_budget(CheckpointConfig(keep_best=keep_best, keep_bytes=least), 12_000)
    require_budget(CheckpointConfig(keep_best=keep_best), 12_000)
    with pytest.raises(ConfigurationError, match=f"expected at least {least:,}: .* of 12,000 bytes each"):
        require_budget(CheckpointConfig(keep_best=keep_best, keep_bytes=least - 1), 12_000)


def test_a_store_without_room_for_one_checkpoint_is_refused_with_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, usage = LocalStore(tmp_path), SimpleNamespace(total=50_000, free=12_000)
    monkeypatch.setattr("training.optim.checkpoint_budget.shutil.disk_usage", lambda _folder: usage)
    require_room(store, 12_000)
    with pytest.raises(ConfigurationError, match="has 12,000 bytes free, and one checkpoint takes at least 12,001: "):
        require_room(store, 12_001)
    usage.total = usage.free = 0  # as a file system that does not say how large it is
    require_room(store, 12_001)


@pytest.mark.parametrize(
    ("optimizer", "num_bytes"),
    [
        ({}, 3 * 4 * 8 + 2 * 4),  # two moments, and a count for weight and for bias
        ({"optimizer": "sgd"}, 2 * 4 * 8),
        ({"optimizer": "sgd", "momentum": 0}, 4 * 8),
    ],
)
def test_a_checkpoint_takes_at_least_the_weights_and_what_their_optimizer_keeps(
    optimizer: dict[str, Any], num_bytes: int
) -> None:
    model = nn.Linear(3, 2)
    optimization = Optimization(model, TrainConfig(steps=10, **optimizer), torch.device("cpu"))
    assert least_checkpoint_bytes(model, optimization) == num_bytes
    optimization.backward(model(torch.ones(1, 3)).sum())
    optimization.step(0)
    tensors = [*model.state_dict().values(), *optimization.tensors().values()]
    assert sum(tensor.nbytes for tensor in tensors) == num_bytes


def test_weights_that_are_not_trained_count_where_each_checkpoint_has_them() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimization = Optimization(model, TrainConfig(steps=10), torch.device("cpu"))
    trained, kept = 4 * 6, 2 * 4 * 6 + 2 * 4
    assert least_checkpoint_bytes(model, optimization, leaves_out_frozen=True) == trained + kept
    assert least_checkpoint_bytes(model, optimization) == 4 * 8 + trained + kept
