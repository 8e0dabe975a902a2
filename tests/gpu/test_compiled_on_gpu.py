"""On a GPU too, compiled code serves microbatches of any number of tokens.

In bf16 its bits are not those of code that was compiled from an example of another size (seen on an H100 with torch
2.11): so the example is a function of the run's configuration, and no compiled code of another run is taken.
"""

from pathlib import Path

import pytest
import torch

from tests.helpers.compiled import SHAPES, compiled_block, gradients_of


@pytest.mark.parametrize("example", [600, 60_000])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_no_number_of_tokens_is_left_out(
    precision: torch.dtype, example: int, gpu: torch.device, tmp_path: Path
) -> None:
    with compiled_block(gpu, precision, example, tmp_path) as (block, notes):
        for shape in SHAPES:
            assert gradients_of(block, gpu, precision, shape)
    assert notes == []
