"""What ranks exchange about the files of a checkpoint: sizes and hashes, and what went wrong.

Invariant: collectives for the main thread, in which every rank takes part whatever happened to it before; words travel
as CPU bytes, nothing is pickled.
"""

import torch

from storage.checkpoints.checkpoints import CheckpointFile
from training.collectives import all_reduce
from training.rank_status import Collective
from training.world import World

DIGEST_BYTES, SIZE_BYTES = 32, 8
MAX_TEXT_BYTES = 1000


def share_descriptions(own: list[CheckpointFile | None], world: World) -> list[CheckpointFile]:
    """Size and SHA-256 of each file, from the one rank that wrote it; None is not known here."""
    rows = torch.zeros(len(own), DIGEST_BYTES + SIZE_BYTES, dtype=torch.uint8)
    for row, file in zip(rows, own, strict=True):
        if file is not None:
            description = bytes.fromhex(file.sha256) + file.num_bytes.to_bytes(SIZE_BYTES)
            row.copy_(torch.frombuffer(bytearray(description), dtype=torch.uint8))
    all_reduce(rows, world, Collective.DIGESTS)
    told = [bytes(row.tolist()) for row in rows]
    return [CheckpointFile(num_bytes=int.from_bytes(t[DIGEST_BYTES:]), sha256=t[:DIGEST_BYTES].hex()) for t in told]


def first_trouble(world: World, trouble: str | None) -> str | None:
    """What went wrong on the first rank on which something did; None if all is well on all."""
    own = "" if trouble is None else trouble or "no reason given"
    return next(filter(None, gather_texts(world, own, Collective.TROUBLE)), None)


def gather_texts(world: World, own: str, collective: Collective) -> list[str]:
    """One text of each rank, cut where it is too long."""
    encoded, text = torch.zeros(world.size, MAX_TEXT_BYTES, dtype=torch.uint8), own.encode()[:MAX_TEXT_BYTES]
    encoded[world.rank, : len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    all_reduce(encoded, world, collective)
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in encoded]
