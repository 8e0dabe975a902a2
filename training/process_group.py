"""The library that carries what the ranks send each other.

Invariant: gradients on GPUs go through NCCL, all that is on the CPU through Gloo. Ranks of one machine open no port but
on its loopback.
"""

from datetime import timedelta

import torch.distributed as dist

from training.configuration import TrainConfig
from training.models.precision import Precision
from training.world import World

# Ranks wait for each other while they load their libraries, and at the end while one of them writes the last save.
# Ranks that are watched are ended far earlier, by their own step times (`tasks/supervision/hang.py`).
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


def join_process_group(config: TrainConfig, precision: Precision, world: World) -> None:
    """Meet the other ranks. NCCL refuses two ranks on one GPU, Gloo does not. One rank alone has no other to meet."""
    backend = "gloo"
    if precision.device.type == "cuda":
        backend = "cpu:gloo,cuda:gloo" if config.share_gpus else "cpu:gloo,cuda:nccl"
    if world.size == 1:
        own = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, store=own, rank=0, world_size=1)
        return
    if world.rendezvous_file is None:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        return
    files = dist.FileStore(str(world.rendezvous_file), world.size)  # type: ignore[attr-defined]
    files.set_timeout(COLLECTIVE_TIMEOUT)
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, store=files, rank=world.rank, world_size=world.size)
