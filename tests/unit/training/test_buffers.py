"""A model whose buffers change in training is refused by the buffer's name; constants may be buffers."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.errors import ConfigurationError
from training.models.buffers import Buffers


class Counter(nn.Module):
    """Counts its calls in a buffer, from a given call on."""

    table: Tensor

    def __init__(self, first_call: int = 1) -> None:
        super().__init__()
        self._calls, self._first_call = 0, first_call
        self.register_buffer("table", torch.tensor([1.0, torch.nan]))
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        self._calls += 1
        if self._calls >= self._first_call:
            self.count: Tensor = self.count + 1
        return values * self.table[0]


class QuietNorm(nn.Module):
    """Changes a buffer by an operation that does not count it in the tensor's version."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        mean, variance = self.get_buffer("mean"), self.get_buffer("variance")
        return functional.batch_norm(values, mean, variance, training=True)


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.BatchNorm1d(3), "0.running_mean"), (QuietNorm(), "0.mean"), (Counter(), "0.count"), (Counter(3), "0.count")],
)
def test_a_buffer_that_a_forward_pass_changes_is_named(layer: nn.Module, name: str) -> None:
    model = nn.Sequential(layer)
    buffers = Buffers(model)
    with pytest.raises(ConfigurationError, match=f"buffer '{name}' was changed"):
        for _ in range(3):
            with buffers.held():
                model(torch.randn(4, 3))


def test_constants_are_buffers_like_others_and_may_be_loaded_between_steps() -> None:
    model = nn.Sequential(Counter(first_call=9), nn.LayerNorm(3))
    buffers = Buffers(model)
    for factor in (2.0, 3.0, 4.0):
        model.load_state_dict(model.state_dict() | {"0.table": torch.tensor([factor, torch.nan])})
        with buffers.held():
            given = model.get_submodule("0")(torch.ones(4, 3))
        assert torch.equal(given, torch.full((4, 3), factor))
        assert torch.equal(model.get_buffer("0.count"), torch.zeros(()))
