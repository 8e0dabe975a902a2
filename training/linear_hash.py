"""A hash that is linear: the sum of 64-bit words, each times an odd number of its place, modulo 2^64.

So the hash of a sum of integers is the sum of their hashes, and ranks can check what an all-reduce gave them (the idea:
Huang and Abraham, "Algorithm-based fault tolerance for matrix operations", 1984). Invariant: integers alone, in torch's
operators, so a CPU and a GPU give the same; and a change of one word changes the hash for certain, whatever the change
is: an odd number times what is not zero is not zero modulo 2^64.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from training.data.random_bits import random_bits

ROW_WORDS = 512
# So many words at a time: on a CPU they stay in its cache, on a GPU they keep it busy in little memory.
CHUNK_WORDS = {"cpu": 1 << 16, "cuda": 1 << 22}
WORD_BYTES = 4  # of a tensor


def linear_hash(words: Tensor) -> Tensor:
    """The hash of `words` int64 [N]: int64 [], on their device.

    A change of several words is missed with a probability of about 2^-63, or 2^-(63 - b) where the lowest b bits of all
    of them are as they were: so one of the highest bit alone, of an even number of words, is missed for certain.
    """
    return _join(_hash_rows(_filled_up(words), 0))


def hash_of_bits(tensor: Tensor) -> Tensor:
    """The hash of a tensor of any type and shape, bit for bit: int64 [], on its device.

    Its words are of 32 bits and are hashed as 64, so a change of several of them is missed with a probability of about
    2^-32 at most, whichever bits they are.
    """
    data = tensor.detach().reshape(-1).view(torch.uint8)
    chunk = CHUNK_WORDS[data.device.type]
    # Made once: memory that is new for each chunk would take longer than what is done with it.
    wide = torch.empty(min(chunk, _whole_rows(len(data))), dtype=torch.int64, device=data.device)
    hashes = []
    for part in torch.split(data, chunk * WORD_BYTES):
        words = _words_of(part)
        whole = wide[: _whole_rows(len(part))]
        whole[: len(words)].copy_(words)
        whole[len(words) :].zero_()
        hashes.append(_hash_rows(whole, 0))
    return _join(torch.cat(hashes))


def _whole_rows(num_bytes: int) -> int:
    """Words of as many rows as hold the bytes, at least one."""
    return max(1, -(-num_bytes // (WORD_BYTES * ROW_WORDS))) * ROW_WORDS


def _words_of(data: Tensor) -> Tensor:
    """Bytes as int32, with zeros behind them where they are no whole number of words."""
    if len(data) % WORD_BYTES:
        data = torch.cat([data, data.new_zeros(-len(data) % WORD_BYTES)])
    if data.storage_offset() % WORD_BYTES:
        data = data.clone()
    return data.view(torch.int32)


def _filled_up(words: Tensor) -> Tensor:
    """With zeros behind them to whole rows."""
    missing = -len(words) % ROW_WORDS
    return torch.cat([words, words.new_zeros(missing)]) if missing else words


def _join(hashes: Tensor) -> Tensor:
    """One hash of the rows' hashes: these are hashed as words again, each time with other numbers."""
    level = 1
    while len(hashes) > 1:
        hashes = _hash_rows(_filled_up(hashes), level)
        level += 1
    return hashes[0]


def _hash_rows(words: Tensor, level: int) -> Tensor:
    """The hash of each row of 512 words: int64 [rows]."""
    rows, odd = words.view(-1, ROW_WORDS), _odd_numbers(level, words.device)
    if words.device.type == "cpu":
        return torch.mv(rows, odd)  # in one pass
    num_rows = CHUNK_WORDS[words.device.type] // ROW_WORDS
    return torch.cat([(part * odd).sum(dim=1) for part in torch.split(rows, num_rows)])


@cache
def _odd_numbers(level: int, device: torch.device) -> Tensor:
    """What the words of a row are multiplied by: int64 [512]."""
    bits = random_bits(ROW_WORDS, "linear hash", level) | np.uint64(1)
    return torch.from_numpy(bits.view(np.int64)).to(device)
