"""On a GPU a microbatch's integers follow from the microbatch: not from order, memory, thread or recomputing."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.synthetic_steps import ALONE, make_microbatches, make_trainer, synthetic_dataset
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.gradients.exact_sum import ExactSum
from training.model_configuration import EncoderConfig
from training.models.precision import choose_precision
from training.trainer import Trainer

MODEL = EncoderConfig(width=32, layers=2, heads=4, feedforward=64, dropout=0.1)
DATASET = synthetic_dataset(500)
MICROBATCHES = 4
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])


@pytest.fixture
def new_trainer(device: torch.device, precision: str, tmp_path: Path) -> Callable[[], Trainer]:
    train = train_config(device, precision)
    return lambda: make_trainer(MODEL, train, DATASET, choose_precision(train, ALONE), tmp_path)


@pytest.fixture
def microbatches(device: torch.device, precision: str) -> list[Microbatch]:
    """Of more and of fewer tokens than the 3,072 from which on an embedding's gradient is sorted on a GPU."""
    made = make_microbatches(MODEL, train_config(device, precision), DATASET, pin=device.type == "cuda")
    assert {microbatch.tokens.numel() > 3072 for microbatch in made} == {True, False}
    return made


def train_config(device: torch.device, precision: str) -> TrainConfig:
    return TrainConfig.model_validate(
        {"device": device.type, "precision": precision, "batch_size": 50, "microbatches": MICROBATCHES, "steps": 10}
    )


@PRECISIONS
def test_a_microbatches_integers_do_not_depend_on_what_was_computed_before_on_memory_or_on_the_thread(
    new_trainer: Callable[[], Trainer], microbatches: list[Microbatch], device: torch.device
) -> None:
    trainer = new_trainer()
    expected = [integers_of(trainer, microbatch) for microbatch in microbatches]
    for attempt in range(3):
        random = np.random.default_rng(attempt)
        occupied = [torch.empty(int(size), device=device) for size in random.integers(1, 1 << 20, 40)]
        del occupied[::2]
        for index in random.permutation(len(microbatches)).tolist():
            assert integers_of(trainer, microbatches[index]) == expected[index]
    in_thread: list[bytes] = []
    thread = threading.Thread(
        target=lambda: in_thread.extend(integers_of(trainer, microbatch) for microbatch in microbatches)
    )
    thread.start()
    thread.join()
    assert in_thread == expected


@PRECISIONS
def test_blocks_that_are_computed_again_in_backward_give_the_same_integers(
    new_trainer: Callable[[], Trainer], microbatches: list[Microbatch]
) -> None:
    trainer = new_trainer()
    expected = [integers_of(trainer, microbatch) for microbatch in microbatches]
    trainer.model.activation_checkpointing = True  # type: ignore[assignment]
    assert [integers_of(trainer, microbatch) for microbatch in microbatches] == expected


@PRECISIONS
def test_the_order_of_microbatches_reaches_no_weight(
    new_trainer: Callable[[], Trainer], microbatches: list[Microbatch]
) -> None:
    found = []
    for order in (1, -1):
        trainer = new_trainer()
        for step in range(2):
            trainer.take_step(step, microbatches[::order])
        found.append([parameter.detach().cpu() for parameter in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def integers_of(trainer: Trainer, microbatch: Microbatch) -> bytes:
    """What one microbatch, with the seeds of step 5, adds to the sum."""
    total = trainer._sum
    assert isinstance(total, ExactSum)
    total._begin(total._usual)
    trainer._add_gradient(5, microbatch, is_last=False)
    return total._words.cpu().numpy().tobytes()


def test_microbatches_in_page_locked_memory_arrive_as_they_were(gpu: torch.device) -> None:
    """Also their columns that have no values, without metadata."""
    train = train_config(gpu, "fp32")
    plain, pinned = (make_microbatches(MODEL, train, DATASET, pin) for pin in (False, True))
    for expected, microbatch in zip(plain, pinned, strict=True):
        assert microbatch.tokens.is_pinned()
        moved = microbatch.to(gpu)
        for name in ("tokens", "lengths", "numeric", "categorical", "labels"):
            assert torch.equal(getattr(moved, name).cpu(), getattr(expected, name))
