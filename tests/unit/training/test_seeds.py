"""Random numbers are functions of the step and the microbatch: a resume draws what an uninterrupted run draws."""

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from training.batches.seeds import seed_everything
from training.data.random_bits import random_bits


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_generators_give_the_same_after_a_resume() -> None:
    seed_everything(1, step=5, microbatch=2)
    expected = draw()
    for _ in range(17):
        draw()
    seed_everything(1, step=6, microbatch=0)
    draw()
    seed_everything(1, step=5, microbatch=2)
    assert draw() == expected


def test_steps_microbatches_and_seeds_draw_different_numbers() -> None:
    draws = set()
    for seed, step, microbatch in ((1, 5, 2), (1, 5, 3), (1, 6, 2), (2, 5, 2), (5, 1, 2)):
        seed_everything(seed, step, microbatch)
        draws |= set(draw())
    assert len(draws) == 15


def test_a_microbatch_draws_what_torch_draws_after_its_own_seeding() -> None:
    seed_everything(1, step=5, microbatch=2)
    state = torch.get_rng_state()
    torch.manual_seed(torch.initial_seed())
    assert torch.equal(torch.get_rng_state(), state)


def test_random_bits_are_those_of_a_new_generator_whatever_was_drawn_before_and_in_each_thread() -> None:
    def expected(count: int, number: int) -> list[int]:
        key = hashlib.sha256(repr(("purpose", number)).encode()).digest()[:16]
        words: list[int] = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count).tolist()
        return words

    def draw_some(number: int) -> bool:
        counts = (1, 3, 4, 5, 1000, 1)
        return all(random_bits(n, "purpose", number).tolist() == expected(n, number) for n in counts)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(draw_some, range(200)))
