"""What a library may choose by itself is chosen once, and nothing is done that no number depends on."""

from collections.abc import Iterator

import pytest
import torch

from training.configuration import TrainConfig
from training.model.precision import choose_precision
from training.world import World


@pytest.fixture
def settings_of_before() -> Iterator[None]:
    """These settings are the process's: other tests have theirs back."""
    num_threads, is_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    is_filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = is_filled  # type: ignore[attr-defined]


@pytest.mark.usefixtures("settings_of_before")
def test_algorithms_are_deterministic_and_new_memory_is_not_filled() -> None:
    choose_precision(TrainConfig(device="cpu"), World(0, 1, 0, 1))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.empty(1 << 16).isnan().all()
