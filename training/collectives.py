"""What ranks send each other, in the process group of their world; one rank alone sends nothing.

Invariant: a collective is called by all ranks of the world at the same point, and its wait is known by its name.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from training.rank_status import Collective
from training.world import World

SUM, GREATEST = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def all_reduce(tensor: Tensor, world: World, collective: Collective, operation: Any = SUM) -> None:
    """Put the sum over all ranks, or their greatest, into `tensor`, on every rank."""
    if world.size > 1:
        with world.rank_status.waiting_for_ranks(collective):
            world.group.allreduce([tensor], operation).wait()


def begin_all_reduce(tensor: Tensor, world: World) -> list[dist.Work]:
    """Begin to put the sum over all ranks into `tensor`; what is to be waited for."""
    return [world.group.allreduce([tensor])] if world.size > 1 else []


def broadcast(tensor: Tensor, source: int, world: World, collective: Collective) -> None:
    """Give `tensor` of the rank `source` to every rank."""
    if world.size > 1:
        with world.rank_status.waiting_for_ranks(collective):
            world.group.broadcast(tensor, source).wait()


def send(tensor: Tensor, receiver: int, world: World) -> None:
    """Send to one rank, which receives."""
    world.group.send([tensor], receiver, 0).wait()


def receive(tensor: Tensor, sender: int, world: World) -> None:
    """Receive into `tensor` from one rank, which sends."""
    world.group.recv([tensor], sender, 0).wait()
