"""How gradients are summed in training: exactly, in whatever parts; fast, where that is asked for; or not at all."""

import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.checkpoints.checkpoints import FoundCheckpoint, hash_weights
from storage.checkpoints.tensor_files import find_non_finite, weights_distance
from tests.helpers.elastic_runs import Runs, require_the_same, tensors_of
from tests.helpers.processes import train_segment
from tests.helpers.training import read_log, read_state, train_forked
from training import trainer
from training.batches.tensors import Microbatch
from training.export.standalone.holdfast_network import Architecture
from training.gradients import cpu_pass, exact_sum, fixed_point
from training.gradients.fast_sum import FastSum
from training.models.encoder.network import Classifier
from training.spec import SegmentSpec
from training.targets.multiclass import Multiclass
from training.trainer import Trainer
from training.world import World


def test_how_parameters_are_put_into_buckets_reaches_no_bit(tmp_path: Path) -> None:
    """What small models have one of, in many. A coarse resolution gives the tallies something to count."""
    runs, found = Runs(tmp_path), []
    for ranks, train_in in (
        (1, train_coarsely),
        (1, train_coarsely_in_small_parts),
        (3, train_coarsely_in_small_parts),
    ):
        spec = runs.next_spec(ranks, steps=4)
        assert train_forked(spec, runs.store, train_in).outcome == "completed", read_log(spec)
        found.append(runs.newest_of(spec))
    assert read_state(runs.store, found[0])["gradient_values_rounded_away"] > 1000
    for checkpoint in found[1:]:
        require_the_same(checkpoint, found[0], runs)


def train_coarsely(spec: SegmentSpec, world: World) -> Any:
    fixed_point.SUM_BITS = 40
    return train_segment(spec, world)


def train_coarsely_in_small_parts(spec: SegmentSpec, world: World) -> Any:
    exact_sum.BUCKET_VALUES = 700
    cpu_pass.CHUNK_VALUES = 100
    return train_coarsely(spec, world)


def test_where_gradients_begin_in_memory_is_the_same_at_every_step(tmp_path: Path) -> None:
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


def test_fast_sums_the_gradients_that_exact_sums_to_the_same_bits_on_the_same_number_of_ranks_alone(
    tmp_path: Path,
) -> None:
    """Three ranks, since two numbers give one sum in whatever order they are added; resumed below."""
    runs = Runs(tmp_path)
    one, two, three, again = (runs.train(ranks, steps=5, sum="fast")[5] for ranks in (1, 2, 3, 3))
    require_the_same(again, three, runs)
    assert hash_weights(runs.store, two) != hash_weights(runs.store, three)
    assert runs.ledger(two)[0].equals(runs.ledger(three)[0])
    exact = runs.train(1, steps=5)[5]
    # What is left is rounding. The moments would show a wrong factor, which Adam hides from the weights.
    for fast in (one, three):
        assert weights_distance(tensors_of(runs.store, exact), tensors_of(runs.store, fast)).relative_l2 < 1e-6


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_loss_that_is_not_finite_ends_the_segment_and_reaches_no_checkpoint(ranks: int, tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    train: dict[str, Any] = {"learning_rate": 1e7, "warmup_fraction": 0.0, "log_every_steps": 50, "every_steps": 1}
    spec = runs.next_spec(ranks, **train)
    outcome = train_forked(spec, runs.store)
    assert outcome.outcome == "diverged", read_log(spec)
    assert "loss became nan at step 2." in outcome.cause
    assert list(runs.checkpoints_of(spec)) == [1]
    for path in tensors_of(runs.store, runs.newest_of(spec)):
        assert find_non_finite(path) is None


@pytest.mark.parametrize(
    ("microbatch", "slope"), [(0, math.inf), pytest.param(4, math.nan, marks=pytest.mark.slow), (7, 2.0**126)]
)
def test_one_microbatch_whose_gradient_no_sum_can_hold_is_noticed(
    microbatch: int, slope: float, tmp_path: Path
) -> None:
    """Whether it is a rank's last one, whose sum travels at once, or one that is kept until then."""
    runs = Runs(tmp_path)
    spec = runs.next_spec(3, steps=1)
    outcome = train_forked(spec, runs.store, partial(train_with_a_steep_microbatch, microbatch=microbatch, slope=slope))
    assert outcome.outcome == "diverged", read_log(spec)
    assert "At step 1 a microbatch's gradient was not finite" in outcome.cause
    assert runs.checkpoints_of(spec) == {}


@pytest.mark.parametrize(
    ("slope", "precision"), [pytest.param(1e6, "fp32", marks=pytest.mark.slow), (1e30, "fp32"), (1e6, "fp16")]
)
def test_a_gradient_that_clipping_tames_is_the_same_step_on_any_number_of_ranks(
    slope: float, precision: str, tmp_path: Path
) -> None:
    """One microbatch of each step is far outside the usual range, of the kept ones and of the last ones of a rank."""
    target = partial(train_with_a_steep_microbatch, microbatch=4, slope=slope)
    runs = Runs(tmp_path)
    settings: dict[str, Any] = {"steps": 4, "every_steps": 3, "precision": precision, "target": target}
    found = [runs.train(ranks, **settings) for ranks in (1, 3)]
    require_the_same(found[1][4], found[0][4], runs)
    resumed = runs.train(2, found[0][3], **settings)
    require_the_same(resumed[4], found[0][4], runs)
    require_close_to_fast(runs, found[0][4], **settings)


def require_close_to_fast(runs: Runs, exact: FoundCheckpoint, **settings: Any) -> None:
    fast = runs.train(1, sum="fast", **settings)[exact.index.step]
    assert weights_distance(tensors_of(runs.store, exact), tensors_of(runs.store, fast)).relative_l2 < 1e-5
    scalers = [read_state(runs.store, checkpoint)["optimization"] for checkpoint in (exact, fast)]
    assert scalers[0] == scalers[1]  # in fp16 no step was skipped that plain DDP takes


def test_a_rare_class_with_a_large_weight_is_trained_as_plain_ddp_trains_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    settings: dict[str, Any] = {"steps": 4, "target": train_with_a_heavy_class}
    found = [runs.train(ranks, **settings) for ranks in (1, 3)]
    require_the_same(found[1][4], found[0][4], runs)
    require_close_to_fast(runs, found[0][4], **settings)


def train_with_a_heavy_class(spec: SegmentSpec, world: World) -> Any:
    """The first class weighs so much that the gradient of a microbatch that has it is outside the usual range."""

    def heavy(_kind: Multiclass, class_counts: Sequence[int], num_rows: int, exponent: float) -> Tensor:
        return torch.tensor([1e8, *(1.0 for _ in class_counts[1:])])

    Multiclass.class_weights = heavy  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


def test_where_a_step_has_one_microbatch_its_gradient_is_the_sum_and_is_watched_alike(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 4, "every_steps": 2, "microbatches": 1}
    runs = Runs(tmp_path)
    straight = runs.train(1, **settings)
    require_the_same(runs.train(1, straight[2], **settings)[4], straight[4], runs)
    ddp = runs.train(1, target=train_by_ddp_alone, **settings)[4]
    assert weights_distance(tensors_of(runs.store, ddp), tensors_of(runs.store, straight[4])).relative_l2 < 1e-6
    spec = runs.next_spec(1, **settings)
    steep = partial(train_with_a_steep_microbatch, microbatch=0, slope=math.inf)
    outcome = train_forked(spec, runs.store, steep)
    assert outcome.outcome == "diverged", read_log(spec)
    assert "At step 1 a microbatch's gradient was not finite" in outcome.cause


def train_by_ddp_alone(spec: SegmentSpec, world: World) -> Any:
    vars(trainer)["OnlyGradient"] = lambda model, _, count: FastSum(model, world, torch.device("cpu"), None, count)
    return train_segment(spec, world)


def train_with_a_steep_microbatch(spec: SegmentSpec, world: World, microbatch: int, slope: float) -> Any:
    """The loss of this microbatch has such a gradient for one number, and the value that it should have."""
    plain_loss = Trainer._loss

    def steep_loss(trainer: Trainer, batch: Microbatch) -> Tensor:
        loss = plain_loss(trainer, batch)
        if batch.index != microbatch:
            return loss
        steep: Tensor = Steep.apply(trainer.model.get_parameter("head.bias")[0], slope)  # type: ignore[no-untyped-call]
        return loss + steep

    Trainer._loss = steep_loss  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


class Steep(torch.autograd.Function):
    """Zero, with a gradient as given."""

    @staticmethod
    def forward(context: Any, number: Tensor, slope: float) -> Tensor:
        context.slope = slope
        return torch.zeros_like(number)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.slope, None


@pytest.mark.parametrize("sum", ["exact", "fast"])
def test_parameters_that_some_microbatches_or_none_use_and_frozen_ones_are_no_obstacle(
    sum: str, tmp_path: Path
) -> None:
    """In the exact sum no bit depends on which microbatches come together on a rank; and either sum can be resumed."""
    runs = Runs(tmp_path)
    few: dict[str, Any] = {"steps": 6, "every_steps": 3, "target": train_with_idle_parameters}
    straight = runs.train(3, sum=sum, **few)
    resumed = runs.train(3, straight[3], sum=sum, **few)
    require_the_same(resumed[6], straight[6], runs)
    before, after = (weights_of(runs, straight[step]) for step in (3, 6))
    for name in ("token_embedding.weight", "unused"):
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["seldom"], after["seldom"])
    if sum == "exact":
        require_the_same(runs.train(1, **few)[6], straight[6], runs)
        require_close_to_fast(runs, straight[6], **few)


def weights_of(runs: Runs, checkpoint: FoundCheckpoint) -> dict[str, Tensor]:
    paths = [path for path in tensors_of(runs.store, checkpoint) if path.name in checkpoint.index.model_files]
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


def train_with_idle_parameters(spec: SegmentSpec, world: World) -> Any:
    """One matrix is frozen, one vector (a zero: decay leaves it) never used, one by every third microbatch."""
    plain_init, plain_forward = Classifier.__init__, Classifier.forward

    def init(model: Classifier, sizes: Architecture) -> None:
        plain_init(model, sizes)
        model.token_embedding.requires_grad_(False)
        model.unused = nn.Parameter(torch.zeros(3))
        model.seldom = nn.Parameter(torch.zeros(model.head.out_features))

    def forward(model: Classifier, microbatch: Microbatch) -> Tensor:
        logits = plain_forward(model, microbatch)
        return logits + model.get_parameter("seldom") if microbatch.index % 3 == 0 else logits

    Classifier.__init__, Classifier.forward = init, forward  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


@pytest.mark.parametrize(("ranks", "sum"), [(1, "fast"), (2, "exact")])
def test_a_model_whose_buffers_change_in_training_is_refused_by_name_before_the_first_step(
    ranks: int, sum: str, tmp_path: Path
) -> None:
    runs = Runs(tmp_path)
    spec = runs.next_spec(ranks, sum=sum, every_steps=1)
    outcome = train_forked(spec, runs.store, train_with_batch_normalisation)
    assert (outcome.outcome, outcome.is_final, outcome.last_step) == ("failed", True, 0), read_log(spec)
    assert "The model's buffer 'token_norm.running_mean' was changed" in outcome.cause
    assert runs.checkpoints_of(spec) == {}


def train_with_batch_normalisation(spec: SegmentSpec, world: World) -> Any:
    plain_init = Classifier.__init__

    def init(model: Classifier, sizes: Architecture) -> None:
        plain_init(model, sizes)
        model.token_norm = norm = nn.BatchNorm1d(sizes.width)
        model.token_embedding.register_forward_hook(lambda _, __, out: norm(out.view(-1, sizes.width)).view(out.shape))

    Classifier.__init__ = init  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


FIRST_SCALE, STEPS = 2.0**24, 10


def train_with_a_loss_scale_that_overflows(spec: SegmentSpec, world: World) -> Any:
    torch.amp.GradScaler = partial(torch.amp.GradScaler, init_scale=FIRST_SCALE)  # type: ignore[misc, assignment]
    return train_segment(spec, world)


def test_an_overflow_in_fp16_is_the_scalers_business_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Steps are skipped until the scale fits, and the run goes on."""
    runs, found = Runs(tmp_path), []
    for ranks in (1, 3):
        spec = runs.next_spec(ranks, precision="fp16", steps=STEPS)
        assert train_forked(spec, runs.store, train_with_a_loss_scale_that_overflows).outcome == "completed"
        found.append(runs.newest_of(spec))
    require_the_same(found[1], found[0], runs)
    scale = read_state(runs.store, found[0])["optimization"]["scaler"]["scale"]
    num_skipped = math.log2(FIRST_SCALE / scale)
    assert 0 < num_skipped < STEPS
    with safe_open(tensors_of(runs.store, found[0])[-1], "numpy") as file:
        assert file.get_tensor("step.head.bias") == STEPS - num_skipped
