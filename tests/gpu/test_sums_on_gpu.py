"""On a GPU too, a gradient outside the usual range is summed exactly, and buckets travel beside backward."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.processes import train_segment
from tests.integration.test_sums_in_training import train_with_a_steep_microbatch
from training.gradients import exact_sum
from training.spec import SegmentSpec
from training.world import World


@pytest.mark.parametrize("slope", [1.0, 1e6])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_any_number_of_ranks_and_buckets_gives_the_same_bits_on_a_gpu(
    precision: str, slope: float, device: torch.device, tmp_path: Path
) -> None:
    """Two and three ranks share the GPU through Gloo; one rank has all parameters in one bucket."""
    runs = Runs(tmp_path)
    settings: dict[str, Any] = {"device": device.type, "precision": precision, "steps": 6}
    steep = partial(train_with_a_steep_microbatch, microbatch=4, slope=slope)
    expected = runs.train(1, target=steep, **settings)[6]
    for ranks in (2, 3):
        in_parts = partial(train_in_small_buckets, target=steep)
        found = runs.train(ranks, target=in_parts, share_gpus=True, **settings)[6]
        require_the_same(found, expected, runs)


def train_in_small_buckets(spec: SegmentSpec, world: World, target: Any = train_segment) -> Any:
    exact_sum.BUCKET_VALUES = 700
    return target(spec, world)
