"""The linear hash: what it is, that it is linear, and which changes it shows."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from training import linear_hash as linear_hash_module
from training.linear_hash import ROW_WORDS, hash_of_bits, linear_hash

MODULUS = 1 << 64
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)


def random_words(count: int, seed: int = 0) -> Tensor:
    bits = np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, count)
    return torch.from_numpy(bits)


def weight_of(index: int, count: int) -> int:
    """What the word at a place is multiplied by: the hash of a one there and zeros elsewhere."""
    words = torch.zeros(count, dtype=torch.int64)
    words[index] = 1
    return int(linear_hash(words))


def flipped(tensor: Tensor, bit: int) -> Tensor:
    """A copy with one bit changed."""
    copy = tensor.clone()
    copy.view(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
    return copy


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 3 * ROW_WORDS, 2 * ROW_WORDS**2 + 7])
def test_it_is_the_sum_of_words_times_odd_numbers_modulo_2_to_the_64(count: int) -> None:
    words = random_words(count)
    places = range(count) if count < 2000 else random.Random(1).sample(range(count), 50)
    weights = {place: weight_of(place, count) for place in places}
    assert all(weight % 2 for weight in weights.values())
    assert len(set(weights.values())) == len(weights)
    sparse = torch.zeros_like(words)
    sparse[list(places)] = words[list(places)]
    expected = sum(weight * int(words[place]) for place, weight in weights.items())
    assert (int(linear_hash(sparse)) - expected) % MODULUS == 0


def test_the_hash_of_a_sum_is_the_sum_of_the_hashes_also_where_the_sum_overflows() -> None:
    one, other = random_words(5000, 1), random_words(5000, 2)
    assert linear_hash(one + other) == linear_hash(one) + linear_hash(other)
    assert linear_hash(one + other) != linear_hash(one)


def test_every_bit_of_every_word_counts() -> None:
    words = random_words(2 * ROW_WORDS)
    before = linear_hash(words)
    places = [(word, bit) for word in (0, 1, 511, 512, 1023) for bit in range(64)]
    assert not any(linear_hash(flipped(words, 64 * word + bit)) == before for word, bit in places)


def test_words_that_change_places_are_noticed() -> None:
    words = random_words(ROW_WORDS**2)
    turned = words.view(ROW_WORDS, ROW_WORDS).T.reshape(-1)
    assert linear_hash(turned) != linear_hash(words)


def test_the_operators_of_a_gpu_give_what_those_of_a_cpu_give() -> None:
    """Both are torch's, and integers: here a CPU computes both."""
    words = random_words(9 * ROW_WORDS).view(-1, ROW_WORDS)
    odd = linear_hash_module._odd_numbers(0, words.device)
    assert torch.equal(torch.mv(words, odd), (words * odd).sum(dim=1))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5), (70_001,)], ids=str)
def test_a_flipped_bit_of_a_tensor_of_any_type_and_shape_is_noticed(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    chance = random.Random(3)
    for bit in {0, 8 * tensor.nbytes - 1, *(chance.randrange(8 * tensor.nbytes) for _ in range(20))}:
        assert hash_of_bits(flipped(tensor, bit)) != hash_of_bits(tensor), bit


def test_two_signs_that_flip_are_noticed_wherever_they_are() -> None:
    tensor = torch.ones(4096)
    chance = random.Random(4)
    for _ in range(200):
        one, other = chance.sample(range(4096), 2)
        assert hash_of_bits(flipped(flipped(tensor, 32 * one + 31), 32 * other + 31)) != hash_of_bits(tensor)


def test_zero_and_minus_zero_differ_and_a_nan_is_as_equal_as_its_bits() -> None:
    assert hash_of_bits(torch.tensor([0.0])) != hash_of_bits(torch.tensor([-0.0]))
    nan = torch.full((5,), torch.nan)
    assert hash_of_bits(nan) == hash_of_bits(nan.clone())


@pytest.mark.parametrize("chunk", [512, 1024, 1 << 16])
def test_how_a_tensor_lies_in_memory_and_in_which_parts_it_is_read_reaches_no_hash(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.rand(3001, 3, generator=torch.Generator().manual_seed(5))
    expected = hash_of_bits(tensor)
    monkeypatch.setitem(linear_hash_module.CHUNK_WORDS, "cpu", chunk)
    file = torch.zeros(tensor.nbytes + 3, dtype=torch.uint8)
    for start in range(4):  # as in the bytes of a file
        part = file[start:][: tensor.nbytes] if start < 3 else file[3:]
        part.copy_(tensor.reshape(-1).view(torch.uint8))
        assert hash_of_bits(part) == expected
    assert hash_of_bits(tensor.T.contiguous().T) == expected
    assert hash_of_bits(torch.zeros(0)) == hash_of_bits(torch.zeros(1))
