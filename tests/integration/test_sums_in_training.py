"""How gradients are summed in training: exactly, in whatever parts; fast, where that is asked for; or not at all."""

import json
import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from storage.checkpoints.checkpoints import hash_weights
from storage.checkpoints.tensor_files import find_non_finite, weights_distance
from tests.helpers.elastic_runs import STEPS, Runs, require_the_same, tensors_of
from tests.helpers.processes import train_segment
from tests.helpers.training import read_log, read_state, train_forked
from training.data.batches import Leaf
from training.specification import SegmentSpec
from training.sums import exact_sum, fixed_point
from training.trainer import Trainer
from training.world import World


def test_neither_groups_nor_buckets_of_parameters_reach_a_bit(tmp_path: Path) -> None:
    """What small models have one of, in many. A coarse resolution gives the tallies something to count."""
    runs, found = Runs(tmp_path), []
    for ranks, train_in in (
        (1, train_coarsely),
        (1, train_coarsely_in_small_parts),
        (3, train_coarsely_in_small_parts),
    ):
        spec = runs.next_spec(ranks)
        assert train_forked(spec, runs.store, train_in).outcome == "completed", read_log(spec)
        found.append(runs.newest_of(spec))
    assert read_state(runs.store, found[0])["gradient_values_rounded_away"] > 1000
    for checkpoint in found[1:]:
        require_the_same(checkpoint, found[0], runs)


def train_coarsely(spec: SegmentSpec, world: World) -> Any:
    fixed_point.SUM_BITS = 40
    return train_segment(spec, world)


def train_coarsely_in_small_parts(spec: SegmentSpec, world: World) -> Any:
    exact_sum.GROUP_VALUES = 700
    exact_sum.DistributedDataParallel = partial(DistributedDataParallel, bucket_cap_mb=0.004)  # type: ignore[misc]
    fixed_point.CHUNK_VALUES = 100
    return train_coarsely(spec, world)


def test_where_gradients_begin_in_memory_does_not_change_when_buckets_are_regrouped(tmp_path: Path) -> None:
    """On GPUs the order in which a norm is added up depends on it."""
    runs = Runs(tmp_path, "binary")
    spec = runs.next_spec(2, steps=3)
    assert train_forked(spec, runs.store, train_and_note_alignment).outcome == "completed", read_log(spec)
    noted = json.loads((spec.scratch_folder / "alignment.json").read_text())
    assert len(noted) == 3
    assert all(offset == 0 for step in noted for offset in step)


def train_and_note_alignment(spec: SegmentSpec, world: World) -> Any:
    noted: list[list[int]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def noting_clip(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
        listed = list(parameters)
        noted.append([parameter.grad.data_ptr() % 16 for parameter in listed if parameter.grad is not None])
        return clip(listed, max_norm)

    torch.nn.utils.clip_grad_norm_ = noting_clip  # type: ignore[assignment]
    kept = train_segment(spec, world)
    if world.is_first:
        (spec.scratch_folder / "alignment.json").write_text(json.dumps(noted))
    return kept


def test_fast_gives_the_same_bits_on_the_same_number_of_ranks_alone(tmp_path: Path) -> None:
    """Also after a resume. Three ranks, since two numbers give one sum in whatever order they are added."""
    runs = Runs(tmp_path)
    three, again, two = (runs.train(ranks, sum="fast") for ranks in (3, 3, 2))
    for step in three:
        require_the_same(again[step], three[step], runs)
        assert hash_weights(runs.store, two[step]) != hash_weights(runs.store, three[step])
        assert runs.ledger(two[step])[0].equals(runs.ledger(three[step])[0])
    resumed = runs.train(3, resume=three[5], sum="fast")
    require_the_same(resumed[12], three[12], runs)


@pytest.mark.parametrize("ranks", [1, 3])
def test_fast_and_exact_sum_the_same_gradients(ranks: int, tmp_path: Path) -> None:
    """What is left is rounding. The moments would show a wrong factor, which Adam hides from the weights."""
    runs = Runs(tmp_path)
    exact, fast = runs.train(ranks, steps=5)[5], runs.train(ranks, steps=5, sum="fast")[5]
    assert weights_distance(tensors_of(runs.store, exact), tensors_of(runs.store, fast)).relative_l2 < 1e-6


@pytest.mark.parametrize(
    ("learning_rate", "cause"),
    [
        (1e4, r"At step 2 a leaf's gradient was not finite, or larger than the 65,536 "),
        (1e7, r"loss became nan at step 2\."),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_no_sum_can_hold_ends_the_segment_and_reaches_no_checkpoint(
    ranks: int, learning_rate: float, cause: str, tmp_path: Path
) -> None:
    runs = Runs(tmp_path)
    train = {"learning_rate": learning_rate, "warmup_fraction": 0.0, "log_every_steps": 50, "every_steps": 1}
    spec = runs.next_spec(ranks, **train)
    outcome = train_forked(spec, runs.store)
    assert outcome.outcome == "diverged", read_log(spec)
    assert re.search(cause, outcome.cause), outcome.cause
    assert list(runs.checkpoints_of(spec)) == [1]
    for path in tensors_of(runs.store, runs.newest_of(spec)):
        assert find_non_finite(path) is None


@pytest.mark.parametrize("leaf", [0, 4, 7])
def test_one_leaf_whose_gradient_is_out_of_range_is_noticed(leaf: int, tmp_path: Path) -> None:
    """Whether it is a rank's last one, which travels at once, or one that is kept until then."""
    runs = Runs(tmp_path)
    spec = runs.next_spec(3, steps=1)
    outcome = train_forked(spec, runs.store, partial(train_with_a_steep_leaf, leaf=leaf))
    assert outcome.outcome == "diverged", read_log(spec)
    assert "At step 1 a leaf's gradient was not finite, or larger than the 65,536" in outcome.cause
    assert runs.checkpoints_of(spec) == {}


def train_with_a_steep_leaf(spec: SegmentSpec, world: World, leaf: int) -> Any:
    """The loss of this leaf has a gradient of a million for one number, and the value that it should have."""
    plain_loss = Trainer._loss

    def steep_loss(trainer: Trainer, batch: Leaf) -> Tensor:
        loss, bias = plain_loss(trainer, batch), trainer.model.head.bias[0]
        return loss + 1e6 * (bias - bias.detach()) if batch.index == leaf else loss

    Trainer._loss = steep_loss  # type: ignore[method-assign]
    return train_segment(spec, world)


FIRST_SCALE = 2.0**24


def train_with_a_loss_scale_that_overflows(spec: SegmentSpec, world: World) -> Any:
    torch.amp.GradScaler = partial(torch.amp.GradScaler, init_scale=FIRST_SCALE)  # type: ignore[misc]
    return train_segment(spec, world)


def test_an_overflow_in_fp16_is_the_scalers_business_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Steps are skipped until the scale fits, and the run goes on."""
    runs, found = Runs(tmp_path), []
    for ranks in (1, 3):
        spec = runs.next_spec(ranks, precision="fp16")
        assert train_forked(spec, runs.store, train_with_a_loss_scale_that_overflows).outcome == "completed"
        found.append(runs.newest_of(spec))
    require_the_same(found[1], found[0], runs)
    scale = read_state(runs.store, found[0])["optimization"]["scaler"]["scale"]
    num_skipped = math.log2(FIRST_SCALE / scale)
    assert 0 < num_skipped < STEPS
    with safe_open(tensors_of(runs.store, found[0])[-1], "numpy") as file:
        assert file.get_tensor("step.head.bias") == STEPS - num_skipped
