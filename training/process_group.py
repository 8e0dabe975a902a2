"""Which library carries what the ranks tell each other.

Invariant: gradients on GPUs go through NCCL, all that is on the CPU through Gloo.
"""

from datetime import timedelta

import torch.distributed as dist

from training.configuration import TrainConfig
from training.model.precision import Precision

# Ranks wait for each other while they load their libraries, and at the end while one of them writes the last save.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


def join_process_group(config: TrainConfig, precision: Precision) -> None:
    """Meet the other ranks. NCCL refuses two ranks on one GPU, Gloo does not."""
    backend = "gloo"
    if precision.device.type == "cuda":
        backend = "cpu:gloo,cuda:gloo" if config.share_gpus else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
