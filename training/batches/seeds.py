"""seed(step, microbatch): every random number of a forward and backward pass, as a pure function.

Invariant: all four generators that a model or a library can draw from are set before each microbatch, so that what they
give does not depend on how the run came to this step, nor on which rank computes the microbatch. That is also why no
generator's state stands in a checkpoint: it is derived from the step.
"""

import random

import numpy as np
import torch

from training.data.random_bits import random_bits


def seed_everything(seed: int, step: int, microbatch: int) -> None:
    """Set Python's, NumPy's and torch's generators (CPU and all GPUs) for one microbatch of one step."""
    word = int(random_bits(1, "leaf", seed, step, microbatch)[0])
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    # As `torch.manual_seed`, which formats a traceback for each kind of device that is not in use, at every microbatch.
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(word)


def seed_initial_weights(seed: int) -> None:
    """Set the generators for building the model: every rank and every machine draws the same first weights."""
    word = int(random_bits(1, "weights", seed)[0])
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    torch.manual_seed(word)
