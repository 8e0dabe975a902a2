"""Random numbers are functions of the step and the microbatch: a resume draws what an uninterrupted run draws."""

import random

import numpy as np
import torch

from training.batches.seeds import seed_everything


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
