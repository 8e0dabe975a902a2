"""One model on any number of ranks, alone and mixed within a run: the same bits of all that a checkpoint holds."""

import json
import math
import random
import re
import shutil
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from storage.checkpoints import (
    FoundCheckpoint,
    find_complete_checkpoints,
    hash_weights,
    verify_checkpoint,
)
from storage.ledger import LedgerHeader, walk_ledger
from storage.local_store import LocalStore
from storage.segments import find_outcome
from storage.tensor_files import find_non_finite, weights_distance
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import RankProcesses, train_segment
from tests.helpers.training import make_spec, read_log, read_state, train_forked
from training import exact_sum, fixed_point
from training.batches import Leaf
from training.model import Classifier
from training.order import SampleOrder
from training.segment import run_segment
from training.specification import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.trainer import Trainer
from training.world import World

LEAVES = 8
STEPS = 12
# Dropout, metadata, batches across two epochs, accumulation, and a validation at step 10 are part of all of them.
VARIANTS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "multiclass, fp32": ("multiclass", [1, 2, 3, 4, 8], {}),
    "binary, bf16": ("binary", [1, 2, 3, 4, 8], {"precision": "bf16"}),
    "fp16 with a gradient scaler and activation checkpointing": (
        "multiclass",
        [1, 3],
        {"precision": "fp16", "activation_checkpointing": True},
    ),
    "two threads": ("binary", [1, 2], {"threads": 2, "leaves": 3, "steps": 8}),
}


class Runs:
    """Segments of one run in one store, each under the next fence."""

    def __init__(self, folder: Path, kind: str = "multiclass") -> None:
        self.store = LocalStore(folder / "store")
        self._folder = folder
        self.dataset = publish_small_dataset(self.store, folder / "work", rows=100, kind=kind)
        self._fence = 1

    def next_spec(self, ranks: int, resume: FoundCheckpoint | None = None, **train: Any) -> SegmentSpec:
        self._fence += 1
        settings = {"leaves": LEAVES, "steps": STEPS, "every_steps": 5, **train}
        folder = self._folder / f"segment-{self._fence}"
        spec = make_spec(self.store, self.dataset, folder, self._fence, resume, ranks=ranks, **settings)
        self.train_config = spec.train
        return spec

    def train(self, ranks: int, resume: FoundCheckpoint | None = None, **train: Any) -> dict[int, FoundCheckpoint]:
        """A segment to its end; its checkpoints by their step."""
        spec = self.next_spec(ranks, resume, **train)
        outcome = train_forked(spec, self.store)
        assert (outcome.outcome, outcome.world_size) == ("completed", ranks), read_log(spec)
        return self.checkpoints_of(spec)

    def checkpoints_of(self, spec: SegmentSpec) -> dict[int, FoundCheckpoint]:
        found = find_complete_checkpoints(self.store, spec.run, spec.fence)
        return {checkpoint.index.step: checkpoint for checkpoint in found}

    def newest_of(self, spec: SegmentSpec) -> FoundCheckpoint:
        return find_complete_checkpoints(self.store, spec.run, spec.fence)[0]

    def ledger(self, checkpoint: FoundCheckpoint) -> tuple[pa.Table, list[LedgerHeader]]:
        """All that was consumed up to a checkpoint, and the headers of its parts, both from step 0 on."""
        parts = list(walk_ledger(self.store, checkpoint.index.ledger))[::-1]
        return pa.concat_tables([pq.read_table(path) for _, path, _ in parts]), [header for _, _, header in parts]


def require_the_same(actual: FoundCheckpoint, expected: FoundCheckpoint, runs: Runs) -> None:
    """Every byte of weights, optimizer and state, and every row of the ledger."""
    verify_checkpoint(runs.store, actual.path, actual.digest)
    assert actual.index.files == expected.index.files, f"{actual.path} is not {expected.path}"
    assert runs.ledger(actual)[0].equals(runs.ledger(expected)[0])


def require_every_sample_that_was_due(checkpoint: FoundCheckpoint, runs: Runs) -> None:
    """At each step the batch that the order gives, in as many leaves as configured."""
    rows = runs.ledger(checkpoint)[0].to_pylist()
    order = SampleOrder(runs.dataset.splits["train"].num_rows, runs.dataset.row_group_rows, runs.train_config.seed)
    size = runs.train_config.batch_size
    for step in range(checkpoint.index.step):
        leaves = [row for row in rows if row["step"] == step]
        assert [row["leaf"] for row in leaves] == list(range(runs.train_config.leaves))
        consumed = [row for leaf in leaves for row in leaf["rows"]]
        assert sorted(consumed) == sorted(order.rows(step * size, size).tolist())


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_the_same_bits(variant: str, tmp_path: Path) -> None:
    kind, sizes, train = VARIANTS[variant]
    runs = Runs(tmp_path, kind)
    expected = runs.train(sizes[0], **train)
    assert len(expected) >= 2
    require_every_sample_that_was_due(expected[max(expected)], runs)
    for ranks in sizes[1:]:
        found = runs.train(ranks, **train)
        assert found.keys() == expected.keys()
        for step in expected:
            require_the_same(found[step], expected[step], runs)
        assert {header.world_size for header in runs.ledger(found[max(found)])[1]} == {ranks}
    continued = runs.train(sizes[1], resume=found[5], **train)
    assert continued.keys() == expected.keys() - {5}
    for step, checkpoint in continued.items():
        require_the_same(checkpoint, expected[step], runs)


def test_killed_again_and_again_and_continued_on_other_numbers_of_ranks_it_is_the_same_run(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"kills of seed {seed}")
    chance, runs = random.Random(seed), Runs(tmp_path)
    train = {"steps": 36, "every_steps": 2}
    expected = runs.train(1, **train)
    last, specs = None, []
    for ranks in (2, 8, 3, 1):
        specs.append(runs.next_spec(ranks, last, **train))
        kill_at_a_random_moment(specs[-1], runs, chance)
        last = runs.newest_of(specs[-1])
    specs.append(runs.next_spec(4, last, **train))
    assert train_forked(specs[-1], runs.store).outcome == "completed", read_log(specs[-1])

    for spec in specs:
        for step, checkpoint in runs.checkpoints_of(spec).items():
            require_the_same(checkpoint, expected[step], runs)
    assert runs.newest_of(specs[-1]).index.step == 36
    headers = runs.ledger(runs.newest_of(specs[-1]))[1]
    boundaries = [(header.first_step, header.end_step) for header in headers]
    assert [0, *(end for _, end in boundaries)] == [*(first for first, _ in boundaries), 36]
    by_fence = dict.fromkeys((header.fence, header.world_size) for header in headers)
    assert list(by_fence) == [(spec.fence, spec.train.ranks) for spec in specs]


def kill_at_a_random_moment(spec: SegmentSpec, runs: Runs, chance: random.Random) -> None:
    """SIGKILL for all ranks at once, some time after one of the segment's first three checkpoints."""
    num_checkpoints, seconds = chance.randint(1, 3), chance.uniform(0, 0.05 * spec.train.ranks)
    ranks = RankProcesses(spec, partial(train_and_wait_to_be_killed, num_answers=9))
    ranks.start()
    try:
        while len(runs.checkpoints_of(spec)) < num_checkpoints:
            assert all(process.is_alive() for process in ranks.processes), read_log(spec)
            time.sleep(0.01)
        time.sleep(seconds)
    finally:
        exit_codes = ranks.kill()
    assert exit_codes == [-signal.SIGKILL] * spec.train.ranks, read_log(spec)
    assert find_outcome(runs.store, spec.run, spec.fence) is None


class HeldFlag(StopFlag):
    """Asked so many times, never answers again: however late the kill comes, it hits a segment that lives."""

    def __init__(self, num_answers: int) -> None:
        super().__init__()
        self._num_answers = num_answers

    def reason(self) -> StopReason:
        self._num_answers -= 1
        if self._num_answers < 0:
            signal.pause()
        return super().reason()


def train_and_wait_to_be_killed(spec: SegmentSpec, world: World, num_answers: int) -> Any:
    return run_segment(spec, world, HeldFlag(num_answers))


class StoppingFlag(StopFlag):
    """Asks to stop when it is asked for the n-th time: between steps, or within a validation."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self._answers_left = answer

    def reason(self) -> StopReason:
        self._answers_left -= 1
        return StopReason.PREEMPTED if self._answers_left <= 0 else StopReason.NONE


def stop_within_the_validation_at_step_10(spec: SegmentSpec, world: World) -> Any:
    """Asked before each of the steps 0 to 9, and then by the validation."""
    return run_segment(spec, world, StoppingFlag(11))


def test_a_validation_that_was_cut_off_is_made_up_for_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Nothing is consumed there: the new checkpoint names the part of the ledger that the old one names."""
    runs = Runs(tmp_path)
    expected = runs.train(1)
    cut_off = runs.next_spec(2)
    assert train_forked(cut_off, runs.store, stop_within_the_validation_at_step_10).outcome == "preempted"
    stopped = runs.newest_of(cut_off)
    assert read_state(runs.store, stopped)["history"]["validation"] == []
    found = runs.train(3, resume=stopped)
    require_the_same(found[10], expected[10], runs)
    require_the_same(found[12], expected[12], runs)
    assert found[10].index.ledger == stopped.index.ledger


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


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_a_compiled_model_continued_on_another_number_of_ranks_is_the_same(tmp_path: Path) -> None:
    """The process that continues meets other shapes first."""
    runs = Runs(tmp_path)
    expected = runs.train(1, compile=True, steps=8)
    found = runs.train(2, resume=expected[5], compile=True, steps=8)
    require_the_same(found[8], expected[8], runs)


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


def train_coarsely(spec: SegmentSpec, world: World) -> Any:
    fixed_point.SUM_BITS = 40
    return train_segment(spec, world)


def train_coarsely_in_small_parts(spec: SegmentSpec, world: World) -> Any:
    exact_sum.GROUP_VALUES = 700
    exact_sum.DistributedDataParallel = partial(DistributedDataParallel, bucket_cap_mb=0.004)  # type: ignore[misc]
    fixed_point.CHUNK_VALUES = 100
    return train_coarsely(spec, world)


def test_validation_passes_the_same_leaves_through_the_model_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Small models give the same bits in leaves of any shape, large ones do not."""
    runs, seen = Runs(tmp_path), []
    for ranks in (1, 8):
        spec = runs.next_spec(ranks, steps=1)
        assert train_forked(spec, runs.store, train_and_note_validation).outcome == "completed", read_log(spec)
        notes = [json.loads(path.read_text()) for path in spec.scratch_folder.glob("validation-*.json")]
        seen.append(sorted(leaf for note in notes for leaf in note))
    assert sorted(row for rows, _ in seen[0] for row in rows) == list(range(64))
    assert seen[1] == seen[0]


def train_and_note_validation(spec: SegmentSpec, world: World) -> Any:
    """Write down rows and shape of the leaves that this rank looks at without training."""
    plain_forward, notes = Classifier.forward, []

    def noting_forward(model: Classifier, leaf: Leaf) -> Tensor:
        if not model.training:
            notes.append((leaf.rows.tolist(), list(leaf.tokens.shape)))
        return plain_forward(model, leaf)

    Classifier.forward = noting_forward  # type: ignore[method-assign]
    kept = train_segment(spec, world)
    (spec.scratch_folder / f"validation-{world.rank}.json").write_text(json.dumps(notes))
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


def tensors_of(store: LocalStore, found: FoundCheckpoint) -> list[Path]:
    """The files of model and optimizer."""
    return [store.fetch(f"{found.path}/{name}") for name in found.index.tensor_files]


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
