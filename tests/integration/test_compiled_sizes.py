"""Compiled code serves leaves of any number of tokens, with the same bits whatever it was compiled from."""

import hashlib
import shutil

import pytest
import torch

from tests.helpers.compiled import SIZES, compiled_block, gradients_of


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_no_number_of_tokens_is_left_out_and_the_example_reaches_no_bit(precision: torch.dtype) -> None:
    device, found = torch.device("cpu"), []
    try:
        for example in (600, 60_000):
            block = compiled_block(device, precision, example)
            found.append([hashlib.sha256(gradients_of(block, device, precision, size)).hexdigest() for size in SIZES])
            torch.compiler.reset()
    finally:
        torch.compiler.set_stance("default")
    assert found[0] == found[1]
