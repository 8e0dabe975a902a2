"""Where and in which arithmetic the model is computed.

Invariant: whatever a library may choose by itself (algorithms, threads, TF32) is chosen here, once, so that two
processes with the same configuration on the same kind of machine compute the same bits.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from storage.errors import DeviceMissingError
from training.configuration import TrainConfig
from training.world import World

# Which kernels cuBLAS may choose follows from the memory that it has; with this it has the same in every process.
CUBLAS_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
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
    """Pick the device and pin down everything that could change a bit. Raises `DeviceMissingError`.

    What CUDA's libraries read when they are loaded is set by whoever launches the rank (`tasks/launching/ranks.py`).
    """
    torch.set_num_threads(config.threads)
    os.environ.update(CUBLAS_WORKSPACE)  # read at the first product of matrices
    # As `use_deterministic_algorithms(True)` does, but without loading the compiler, which takes two seconds.
    torch.set_deterministic_debug_mode("error")
    # With them torch fills new memory, for those who read what they have not written: a pass over each buffer for
    # nothing where every byte is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # Or parts of a long sum are added up in 16 bits.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return Precision(_choose_device(config, world), AUTOCAST_TYPES.get(config.precision))


def _choose_device(config: TrainConfig, world: World) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceMissingError(
            "train.device = 'cuda', but torch finds no GPU on this machine. If it has one, see what `nvidia-smi` says; "
            "else set train.device = 'auto' or 'cpu'."
        )
    num_gpus = torch.cuda.device_count()
    if world.local_rank >= num_gpus and not config.share_gpus:
        raise DeviceMissingError(
            f"train.ranks asks for more GPUs than the {num_gpus} that torch finds on this machine. If it has more, see "
            "what `nvidia-smi` says of them. Else lower train.ranks: a rank accumulates the leaves that other ranks do "
            "not take. Or set train.share_gpus = true, for a drill."
        )
    device = torch.device("cuda", world.local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device
