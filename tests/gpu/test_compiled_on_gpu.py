"""On a GPU too, compiled code serves leaves of any number of tokens, with the same bits whatever the example was."""

import hashlib

import pytest
import torch

from tests.helpers.compiled import SIZES, compiled_block, gradients_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_no_number_of_tokens_is_left_out_and_the_example_reaches_no_bit(precision: torch.dtype) -> None:
    device = torch.device("cuda", 0)
    found = []
    for example in (600, 60_000):
        block = compiled_block(device, precision, example)
        found.append([hashlib.sha256(gradients_of(block, device, precision, size)).hexdigest() for size in SIZES])
        torch.compiler.reset()
    assert found[0] == found[1]
