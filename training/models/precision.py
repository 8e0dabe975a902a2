"""Device and arithmetic in which the model is computed.

Invariant: a rank chooses its device before it computes anything, and pins with it all that could change a bit
(`training/determinism.py`).
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from storage.errors import DeviceMissingError
from training.configuration import TrainConfig
from training.determinism import pin_numerics
from training.world import World

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The device of this rank, and the type that autocast uses there, if any."""

    device: torch.device
    autocast_type: torch.dtype | None

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which forward passes use the configured precision."""
        enabled = self.autocast_type is not None
        return torch.autocast(self.device.type, dtype=self.autocast_type, enabled=enabled)


def choose_precision(config: TrainConfig, world: World) -> Precision:
    """The device of this rank and its arithmetic; everything that could change a bit is pinned.

    Raises `DeviceMissingError`.
    """
    pin_numerics(config.threads)
    return Precision(_choose_device(config, world), AUTOCAST_TYPES.get(config.precision))


def _choose_device(config: TrainConfig, world: World) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceMissingError(
            "train.device = 'cuda', but torch finds no GPU on this machine. If it has one, see the output of "
            "`nvidia-smi`; else set train.device = 'auto' or 'cpu'."
        )
    num_gpus = torch.cuda.device_count()
    if world.local_rank >= num_gpus and not config.share_gpus:
        raise DeviceMissingError(
            f"train.ranks asks for more GPUs than the {num_gpus} that torch finds on this machine. If it has more, see "
            "the output of `nvidia-smi`. Else lower train.ranks: a rank accumulates the microbatches that other "
            "ranks do not take. Or set train.share_gpus = true, for a drill."
        )
    device = torch.device("cuda", world.local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device
