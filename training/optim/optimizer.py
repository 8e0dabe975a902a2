"""Which optimizer is configured, and what it keeps of each parameter.

Invariant: what an optimizer keeps is asked of the optimizer itself, so another one is one function more, in
`OPTIMIZERS`; its name and its fields are in `TrainConfig`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.configuration import TrainConfig
from training.optim import own_optimizer
from training.optim.adamw import AdamW
from training.optim.kernels import Group
from training.optim.sgd import SGD

# Of the dimensions of a stand-in for a parameter; none of them 1, as what is kept for a whole dimension has.
STAND_IN_SIZES = (2, 3, 5, 7, 11, 13)


def make_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    config: TrainConfig,
    rate_factors: Mapping[str, float] | None = None,
) -> Optimizer:
    """The configured optimizer of those parameters that are trained. Matrices have weight decay, vectors have none.

    `rate_factors` has, by name, what the learning rate of a parameter is of the configured one, where that is not 1.
    """
    factors = rate_factors or {}
    by_factor: dict[float, list[nn.Parameter]] = {1.0: []}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            by_factor.setdefault(factors.get(name, 1.0), []).append(parameter)
    groups = [group for factor, found in by_factor.items() for group in _groups_of(found, factor, config)]
    return OPTIMIZERS[config.optimizer](groups, config)


def _groups_of(parameters: list[nn.Parameter], rate_factor: float, config: TrainConfig) -> list[Group]:
    matrices, vectors = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    return [
        Group(params=matrices, weight_decay=config.weight_decay, rate_factor=rate_factor),
        Group(params=vectors, weight_decay=0.0, rate_factor=rate_factor),
    ]


def _make_adamw(groups: list[Group], config: TrainConfig) -> Optimizer:
    return AdamW(groups, (config.adam_beta1, config.adam_beta2))


def _make_sgd(groups: list[Group], config: TrainConfig) -> Optimizer:
    return SGD(groups, config.momentum, config.nesterov)


OPTIMIZERS: dict[str, Callable[[list[Group], TrainConfig], Optimizer]] = {
    "adamw": _make_adamw,
    "sgd": _make_sgd,
    "factory": own_optimizer.make_own_optimizer,
}


@dataclass(frozen=True)
class StateTensor:
    """Type, shape and device of one tensor that an optimizer keeps; of a number its type in Python."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    number: type | None = None

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def state_of(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What an optimizer keeps of `parameters` as `<kind>.<parameter>`; a number as a tensor.

    Raises `TypeError` for what is neither.
    """
    state = {
        f"{kind}.{name}": _as_tensor(value) if isinstance(value, int | float) else value
        for name, parameter in parameters.items()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{type(optimizer).__name__} keeps {name} as {type(value).__name__}, expected a tensor or a number: "
                "checkpoints hold nothing else of an optimizer."
            )
    return state


def _as_tensor(number: float) -> Tensor:
    """Without a loss: all bits of Python's floats, and whole numbers as they are."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def expected_state(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> dict[str, StateTensor]:
    """What the configured optimizer will keep after its first step, by the names of `state_of`.

    Asked of one that makes a step with small stand-ins, each of whose dimensions has a size of its own: by it a
    dimension of the parameter is found again in what is kept.
    """
    stand_ins = {name: _make_stand_in(parameter) for name, parameter in parameters.items()}
    optimizer = make_optimizer(stand_ins.items(), config)
    optimizer.step()
    expected = {}
    for name, parameter in parameters.items():
        kept = optimizer.state.get(stand_ins[name], {})
        for full_name, tensor in state_of(optimizer, {name: stand_ins[name]}).items():
            sizes = dict(zip(stand_ins[name].shape, parameter.shape, strict=True))
            shape = tuple(sizes.get(size, size) for size in tensor.shape)
            value = kept[full_name.partition(".")[0]]
            number = None if isinstance(value, Tensor) else type(value)
            expected[full_name] = StateTensor(tensor.dtype, shape, tensor.device, number)
    return expected


def require_resumable(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> None:
    """Raise `ConfigurationError` for an optimizer of the user's own that could not be resumed exactly."""

    def make() -> tuple[Optimizer, list[nn.Parameter]]:
        stand_ins = {name: _make_stand_in(p) for name, p in parameters.items() if p.requires_grad}
        return make_optimizer(stand_ins.items(), config), list(stand_ins.values())

    own_optimizer.require_resumable(make, config)


def _make_stand_in(parameter: nn.Parameter) -> nn.Parameter:
    shape = STAND_IN_SIZES[: parameter.ndim]
    stand_in = nn.Parameter(parameter.new_zeros(shape), requires_grad=parameter.requires_grad)
    stand_in.grad = torch.zeros_like(stand_in) if parameter.requires_grad else None
    return stand_in
