"""The optimizer as training uses it, its learning rate as a pure function of the step, and mixed precision.

Invariant: the schedule has no state; the optimizer's state is kept under the parameters' names, not under positions
that a change of the model would shift.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from storage.runs.rollbacks.positions import learning_rate_factor
from storage.runs.run_state import Divergence, RollbackRecord
from training.configuration import TrainConfig
from training.optim.divergence import DivergedError
from training.optim.optimizer import expected_state, make_optimizer, require_resumable, state_of

# So small only after 51 steps more that overflowed than were answered by a rise: torch doubles the scale again after
# 2,000 steps without an overflow.
SMALLEST_LOSS_SCALE = 2.0**-34


def learning_rate(config: TrainConfig, step: int, rollbacks: Sequence[RollbackRecord] = ()) -> float:
    """Learning rate of step `step`, counted from 0: the schedule's, times what rollbacks left of it."""
    return scheduled_rate(config, step) * learning_rate_factor(step, rollbacks)


def scheduled_rate(config: TrainConfig, step: int) -> float:
    """A linear rise; then half a cosine or a line down to the final fraction, or level to the end."""
    warmup_steps = round(config.warmup_fraction * config.num_steps)
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (step - warmup_steps) / max(1, config.num_steps - warmup_steps))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    final = config.final_learning_rate_fraction
    return config.learning_rate * (final + (1 - final) * left)


class Optimization:
    """The optimizer and the gradient scaler of one model, stepped together."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        device: torch.device,
        rollbacks: Sequence[RollbackRecord] = (),
        rate_factors: Mapping[str, float] | None = None,
    ) -> None:
        self._config = config
        self._rollbacks = rollbacks
        self._parameters = dict(model.named_parameters())
        self.optimizer = make_optimizer(self._parameters.items(), config, rate_factors)
        if config.optimizer_reference is not None:
            require_resumable(self._parameters, config)
        # What it keeps once the weights were changed, by the names of `tensors`.
        self.expected = expected_state(self._parameters, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        # What gradients are multiplied by until `step` divides them again: a power of two, 1 unless in fp16.
        self.loss_scale = self._read_loss_scale()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` to those accumulated so far."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, step: int) -> Tensor:
        """Clip the accumulated gradients, change the weights, forget the gradients. fp16 overflow skips the change.

        Returns the norm that the gradient had before it was clipped: [], on the device, the same on every rank.
        """
        self.scaler.unscale_(self.optimizer)
        norm: Tensor = nn.utils.clip_grad_norm_(self._parameters.values(), self._config.clip_norm)
        rate = learning_rate(self._config, step, self._rollbacks)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for parameter in self._parameters.values():
            parameter.grad = None
        self.loss_scale = self._read_loss_scale()
        return norm

    @property
    def is_exhausted(self) -> bool:
        """Whether steps kept overflowing in fp16, whatever the scale; the same on every rank."""
        return self.loss_scale < SMALLEST_LOSS_SCALE

    def exhausted(self, step: int) -> DivergedError:
        """The error that reports it of `step`, counted from 1."""
        return DivergedError(
            f"At step {step} the gradient was not finite, as at many steps before it: in fp16 such a step changes no "
            f"weight and halves the loss scale, which has fallen to {self.loss_scale:g}.",
            Divergence(kind="loss_scale", step=step, value=self.loss_scale),
        )

    @property
    def name(self) -> str:
        """The optimizer's, as configured."""
        return self._config.optimizer

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state, whatever it keeps, as `<kind>.<parameter>`."""
        return state_of(self.optimizer, self._parameters)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over some of the state from `tensors()`. Raises `KeyError` for what the optimizer does not keep.

        On a CPU the tensors themselves, which belong to the optimizer from here on; on a GPU copies, which begin where
        its kernels are fastest. What has the parameter's shape lies in memory as the parameter does: fused kernels take
        the values of all as they lie.
        """
        for name, tensor in tensors.items():
            expected = self.expected[name]
            kind, _, of = name.partition(".")
            parameter = self._parameters[of]
            value = tensor.to(expected.device, copy=expected.device.type == "cuda")
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            kept = value if expected.number is None else expected.number(value.item())
            self.optimizer.state[parameter][kind] = kept

    @property
    def has_state(self) -> bool:
        """Whether all that the optimizer will keep is there. Before the weights were first changed it keeps nothing."""
        return bool(self.optimizer.state) or not self.expected

    def state_dict(self) -> dict[str, Any]:
        """What is not a tensor, JSON-able: the gradient scaler."""
        return {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state["scaler"])
        self.loss_scale = self._read_loss_scale()

    def _read_loss_scale(self) -> float:
        """Makes the CPU wait for the GPU, as the scaler itself does in each step; only in fp16."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
