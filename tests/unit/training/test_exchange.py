"""What ranks tell each other about the files of a checkpoint, as one rank by itself sees it."""

from storage.checkpoints.checkpoints import CheckpointFile
from training.checkpointing.exchange import MAX_TEXT_BYTES, first_trouble, share_descriptions
from training.world import World

ALONE = World(0, 1, 0, 1)


def test_sizes_and_hashes_come_back_as_they_were_and_unknown_ones_as_zeros() -> None:
    first = CheckpointFile(num_bytes=2**40 + 7, sha256=bytes(range(32)).hex())
    last = CheckpointFile(num_bytes=1, sha256=bytes(range(224, 256)).hex())
    unknown = CheckpointFile(num_bytes=0, sha256=bytes(32).hex())
    assert share_descriptions([first, None, last], ALONE) == [first, unknown, last]


def test_trouble_is_told_whatever_letters_it_has_and_cut_where_it_is_too_long() -> None:
    assert first_trouble(ALONE, None) is None
    assert first_trouble(ALONE, "no space for “modèle”") == "no space for “modèle”"
    assert first_trouble(ALONE, "") == "no reason given"
    cut = first_trouble(ALONE, "é" * MAX_TEXT_BYTES)
    assert cut is not None and cut == "é" * (MAX_TEXT_BYTES // 2)
