"""On a GPU a hash is what it is on a CPU, and ranks that share one name the rank whose memory has changed."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.elastic_runs import Runs
from tests.helpers.fault_plans import FlipFault, Memory
from tests.integration.test_equal_state import SAVED_AT, fail
from training import linear_hash as linear_hash_module
from training.linear_hash import hash_of_bits, linear_hash


@pytest.mark.parametrize("count", [512, 513, 3_000_001])
@pytest.mark.parametrize("chunk", [512, 1 << 22])
def test_a_hash_is_the_same_as_on_a_cpu(
    count: int, chunk: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunk == 512 and count > 513:
        pytest.skip("thousands of kernels show no more")
    monkeypatch.setitem(linear_hash_module.CHUNK_WORDS, device.type, chunk)
    words = torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(count))
    assert linear_hash(words.to(device)).cpu() == linear_hash(words)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64):
        values = (words >> 40).to(dtype)
        for tensor in (values, values[1:], values[:0], values[0]):
            assert hash_of_bits(tensor.to(device)).cpu() == hash_of_bits(tensor)


@pytest.mark.parametrize(("of", "background"), [("weights", True), ("moments", False), ("sum", True), ("sent", True)])
def test_the_rank_whose_memory_has_changed_is_named(
    of: Memory, background: bool, device: torch.device, tmp_path: Path
) -> None:
    """A high bit of a mantissa, at a place that is new each time."""
    place = random.randrange(2**40)
    settings: dict[str, Any] = {"device": device.type, "share_gpus": device.type == "cuda", "steps": 40}
    cause = fail(Runs(tmp_path), 3, FlipFault(of, 1, SAVED_AT - 1, 64 * place + 22), background=background, **settings)
    expected = {
        "sum": "rank 1 received another sum",
        "sent": "all ranks received another sum",
    }
    assert expected.get(of, "rank 1 differs from most of the 3 ranks") in cause, place
