"""The library that carries what the ranks send each other.

Invariant: gradients on GPUs go through NCCL, all that is on the CPU through Gloo. Ranks of one machine open no port but
on its loopback.
"""

from datetime import timedelta
from typing import Any

import torch
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
    store = _open_meeting(world)
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, store=store, rank=world.rank, world_size=world.size)
    world.group = dist.group.WORLD


def can_form_others(config: TrainConfig, device: torch.device) -> bool:
    """Whether ranks can go on in another group when one of them dies: the exact sum alone, and through Gloo alone.

    A wait for a rank that died raises in Gloo before anything of its sum is queued on a GPU. In NCCL a kernel
    waits, until somebody aborts it; what is in memory then is no sum.
    """
    return config.sum == "exact" and (device.type == "cpu" or config.share_gpus)


def _open_meeting(world: World) -> Any:
    """The store at which torch's process groups are made."""
    meeting = world.meeting
    if world.size == 1 or meeting is None:
        assert world.size == 1, "several ranks meet somewhere"
        return dist.HashStore()  # type: ignore[attr-defined]
    if meeting.file is not None:
        files = dist.FileStore(str(meeting.file), world.size)  # type: ignore[attr-defined]
        files.set_timeout(COLLECTIVE_TIMEOUT)
        return files
    assert meeting.address is not None and meeting.port is not None, "a file or an address"
    is_host = meeting.listening is not None and world.local_rank == 0
    return dist.TCPStore(  # type: ignore[attr-defined]
        meeting.address,
        meeting.port,
        world.size,
        is_master=is_host,
        timeout=COLLECTIVE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=meeting.listening if is_host else None,
    )
