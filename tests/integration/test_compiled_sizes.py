"""Compiled code serves microbatches of any number of tokens, with the same bits whatever it was compiled from."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.compiled import SHAPES, compiled_block, gradients_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU"),
]
CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_no_number_of_tokens_is_left_out_and_the_example_reaches_no_bit(precision: torch.dtype, tmp_path: Path) -> None:
    found = []
    for example in (600, 60_000):
        with compiled_block(CPU, precision, example, tmp_path / f"{example}") as (block, notes):
            gradients = [gradients_of(block, CPU, precision, shape) for shape in SHAPES]
        assert notes == []
        found.append([hashlib.sha256(gradient).hexdigest() for gradient in gradients])
    assert found[0] == found[1]
    assert [*(tmp_path / "600").rglob("*.so")] != []  # and not where another run would find it


def test_what_compiled_code_does_not_take_is_computed_without_it_and_noted_once(tmp_path: Path) -> None:
    """Code that is compiled here without autocast is called within it."""
    with compiled_block(CPU, torch.float32, 600, tmp_path) as (block, notes):
        for num_tokens in (9000, 5):
            gradients_of(block, CPU, torch.bfloat16, (num_tokens,))
    assert len(notes) == 1 and "does not take a microbatch of 9,000 tokens" in notes[0]
