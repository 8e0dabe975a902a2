"""One model on any number of ranks, alone and mixed within a run: the same bits of all that a checkpoint holds."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from storage.checkpoints.checkpoints import FoundCheckpoint
from tests.helpers.elastic_kills import kill_at_a_random_moment
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.processes import assembling_ahead, train_segment
from tests.helpers.training import SMALL_MODEL, read_log, read_state, train_forked
from training.batches.tensors import Microbatch
from training.data.order import SampleOrder
from training.models.encoder.network import Classifier
from training.segment import run_segment
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.world import World

# Dropout, metadata, a batch across two epochs, accumulation, and a validation after the resume are part of all of them;
# microbatches are in groups where nothing else is said. The last number is that of the ranks which continue.
FEW_STEPS: dict[str, Any] = {"steps": 6, "every_steps": 3, "validate_every_steps": 4}
VARIANTS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "multiclass, fp32": ("multiclass", [1, 3, 8, 2], {}),
    "binary, bf16, microbatches that the ranks do not divide": (
        "binary",
        [1, 3],
        {"precision": "bf16", "microbatches": 5},
    ),
    "fp16 with a gradient scaler and activation checkpointing": (
        "multiclass",
        [2, 1],
        {"precision": "fp16", "activation_checkpointing": True},
    ),
    "two threads, SGD with momentum, a linear schedule": (
        "binary",
        [1, 2],
        {
            "threads": 2,
            "microbatches": 3,
            "optimizer": "sgd",
            "nesterov": True,
            "learning_rate": 0.1,
            "schedule": "linear",
        },
    ),
    "several labels a row, weights, microbatches of one group, a constant learning rate": (
        "multilabel",
        [1, 3],
        {"class_weighting": 0.5, "label_smoothing": 0.1, "padding_efficiency": 0, "schedule": "constant"},
    ),
}


def require_every_sample_that_was_due(checkpoint: FoundCheckpoint, runs: Runs) -> None:
    """At each step the batch that the order gives, in as many microbatches as configured."""
    rows = runs.ledger(checkpoint)[0].to_pylist()
    order = SampleOrder(runs.dataset.splits["train"].num_rows, runs.dataset.row_group_rows, runs.train_config.seed)
    size = runs.train_config.batch_size
    for step in range(checkpoint.index.step):
        microbatches = [row for row in rows if row["step"] == step]
        assert [row["microbatch"] for row in microbatches] == list(range(runs.train_config.microbatches))
        consumed = [row for microbatch in microbatches for row in microbatch["rows"]]
        assert sorted(consumed) == sorted(order.rows(step * size, size).tolist())


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_the_same_bits(variant: str, tmp_path: Path) -> None:
    kind, sizes, settings = VARIANTS[variant]
    runs, train = Runs(tmp_path, kind), FEW_STEPS | settings
    expected = runs.train(sizes[0], **train)
    assert list(expected) == [6, 3]
    require_every_sample_that_was_due(expected[max(expected)], runs)
    for ranks in sizes[1:]:
        found = runs.train(ranks, **train)
        assert found.keys() == expected.keys()
        for step in expected:
            require_the_same(found[step], expected[step], runs)
        assert {header.world_size for header in runs.ledger(found[max(found)])[1]} == {ranks}
    continued = runs.train(sizes[-1], resume=found[3], **train)
    assert list(continued) == [6]
    require_the_same(continued[6], expected[6], runs)
    validations = read_state(runs.store, continued[6])["history"]["validation"]
    assert [validation["step"] for validation in validations] == [4, 6]


@pytest.mark.parametrize("sizes", [(2, 3, 4), pytest.param((2, 8, 3, 4), marks=pytest.mark.slow)])
def test_killed_again_and_again_and_continued_on_other_numbers_of_ranks_it_is_the_same_run(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"kills of seed {seed}")
    chance, runs = random.Random(seed), Runs(tmp_path)
    train: dict[str, Any] = {"steps": 22, "every_steps": 2}
    expected = runs.train(1, **train)
    last, specs = None, []
    for ranks in sizes[:-1]:
        specs.append(runs.next_spec(ranks, last, **train))
        kill_at_a_random_moment(specs[-1], runs, chance, most_checkpoints=2)
        last = runs.newest_of(specs[-1])
    specs.append(runs.next_spec(sizes[-1], last, **train))
    assert train_forked(specs[-1], runs.store).outcome == "completed", read_log(specs[-1])

    for spec in specs:
        for step, checkpoint in runs.checkpoints_of(spec).items():
            require_the_same(checkpoint, expected[step], runs)
    assert runs.newest_of(specs[-1]).index.step == 22
    headers = runs.ledger(runs.newest_of(specs[-1]))[1]
    boundaries = [(header.first_step, header.end_step) for header in headers]
    assert [0, *(end for _, end in boundaries)] == [*(first for first, _ in boundaries), 22]
    by_fence = dict.fromkeys((header.fence, header.world_size) for header in headers)
    assert list(by_fence) == [(spec.fence, spec.train.ranks) for spec in specs]


class StoppingFlag(StopFlag):
    """Asks to stop when it is asked for the n-th time: between steps, or within a validation."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self._answers_left = answer

    def reason(self) -> StopReason:
        self._answers_left -= 1
        return StopReason.PREEMPTED if self._answers_left <= 0 else StopReason.NONE


def stop_within_the_validation_at_step_4(spec: SegmentSpec, world: World) -> Any:
    """Asked before each of the steps 0 to 3, and then by the validation."""
    return run_segment(spec, world, StoppingFlag(5), assembling_ahead(world))


def test_a_validation_that_was_cut_off_is_made_up_for_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Nothing is consumed there: the new checkpoint names the part of the ledger that the old one names."""
    runs, train = Runs(tmp_path), FEW_STEPS | {"every_steps": 2}
    expected = runs.train(1, **train)
    cut_off = runs.next_spec(2, **train)
    assert train_forked(cut_off, runs.store, stop_within_the_validation_at_step_4).outcome == "preempted"
    stopped = runs.newest_of(cut_off)
    assert read_state(runs.store, stopped)["history"]["validation"] == []
    found = runs.train(3, resume=stopped, **train)
    require_the_same(found[4], expected[4], runs)
    require_the_same(found[6], expected[6], runs)
    assert found[4].index.ledger == stopped.index.ledger


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_a_compiled_model_continued_on_another_number_of_ranks_is_the_same(tmp_path: Path) -> None:
    """The process that continues meets other shapes first. With one layer, which still makes fifty libraries."""
    runs, model = Runs(tmp_path), SMALL_MODEL.model_copy(update={"layers": 1})
    expected = runs.train(1, compile=True, steps=8, model=model)
    found = runs.train(2, resume=expected[5], compile=True, steps=8, model=model)
    require_the_same(found[8], expected[8], runs)


def test_validation_passes_the_same_microbatches_through_the_model_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Small models give the same bits in microbatches of any shape, large ones do not."""
    runs, seen = Runs(tmp_path), []
    for ranks in (1, 3):
        spec = runs.next_spec(ranks, steps=1)
        assert train_forked(spec, runs.store, train_and_note_validation).outcome == "completed", read_log(spec)
        notes = [json.loads(path.read_text()) for path in spec.scratch_folder.glob("validation-*.json")]
        seen.append(sorted(microbatch for note in notes for microbatch in note))
    assert sorted(row for rows, _ in seen[0] for row in rows) == list(range(64))
    assert seen[1] == seen[0]
    assert max(len(groups) for _, groups in seen[0]) > 1


def train_and_note_validation(spec: SegmentSpec, world: World) -> Any:
    """Write down rows and groups of the microbatches that this rank looks at without training."""
    plain_forward, notes = Classifier.forward, []

    def noting_forward(model: Classifier, microbatch: Microbatch) -> Tensor:
        if not model.training:
            notes.append((microbatch.rows.tolist(), microbatch.groups))
        return plain_forward(model, microbatch)

    Classifier.forward = noting_forward  # type: ignore[method-assign, assignment]
    kept = train_segment(spec, world)
    (spec.scratch_folder / f"validation-{world.rank}.json").write_text(json.dumps(notes))
    return kept
