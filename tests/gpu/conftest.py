"""What the tests on a GPU share. With PROBE_DEVICE=cpu in the environment those run that a CPU can pass, too.

What is computed in the process of the tests itself is computed as in a rank.
"""

import os

import pytest
import torch

from training.determinism import pin_numerics


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The first GPU; who asks for it is skipped where there is none, or with PROBE_DEVICE=cpu has the CPU."""
    if os.environ.get("PROBE_DEVICE") == "cpu":
        pin_numerics(1)
        return torch.device("cpu")
    return _first_gpu()


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first GPU, for what only a GPU can show."""
    return _first_gpu()


def _first_gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU on this machine")
    pin_numerics(1)
    return torch.device("cuda", 0)
