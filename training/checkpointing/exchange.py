"""What ranks exchange about the files of a checkpoint: hashes, and what went wrong.

Invariant: collectives for the main thread, in which every rank takes part whatever happened to it before; words travel
as CPU bytes, nothing is pickled.
"""

import torch
import torch.distributed as dist

from training.rank_status import Collective
from training.world import World

DIGEST_BYTES = 32
MAX_TEXT_BYTES = 1000


def add_digests(own: list[bytes | None], world: World) -> list[bytes]:
    """The SHA-256 of each file, from the one rank that knows it; None is not known here."""
    digests = torch.zeros(len(own), DIGEST_BYTES, dtype=torch.uint8)
    for row, digest in zip(digests, own, strict=True):
        if digest is not None:
            row.copy_(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
    if world.size > 1:
        with world.rank_status.waiting_for_ranks(Collective.DIGESTS):
            dist.all_reduce(digests)
    return [bytes(row.tolist()) for row in digests]


def first_trouble(world: World, trouble: str | None) -> str | None:
    """What went wrong on the first rank on which something did; None if all is well on all."""
    own = "" if trouble is None else trouble or "no reason given"
    return next(filter(None, gather_texts(world, own, Collective.TROUBLE)), None)


def gather_texts(world: World, own: str, collective: Collective) -> list[str]:
    """One text of each rank, cut where it is too long."""
    encoded, text = torch.zeros(world.size, MAX_TEXT_BYTES, dtype=torch.uint8), own.encode()[:MAX_TEXT_BYTES]
    encoded[world.rank, : len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    if world.size > 1:
        with world.rank_status.waiting_for_ranks(collective):
            dist.all_reduce(encoded)
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in encoded]
