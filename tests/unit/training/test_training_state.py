"""What a run remembers of its validations, whatever they gave."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.checkpoints.history import read_whole_history
from storage.errors import IncompatibleRunError
from storage.objects.digests import canonical_json
from storage.objects.local_store import LocalStore
from training.configuration import DivergenceConfig
from training.metrics.curve import LossCurve
from training.metrics.training_state import MAX_RECENT, TrainingState


def new_state() -> TrainingState:
    return TrainingState(LossCurve(5, DivergenceConfig()))


def after(*values: float) -> TrainingState:
    """One validation after each of the steps 1, 2, ... with this macro-F1."""
    progress = new_state()
    for progress.step, value in enumerate(values, start=1):
        progress.record_validation({"loss": 1 - value, "macro_f1": value}, "macro_f1")
    return progress


def best_of(progress: TrainingState) -> tuple[Any, Any]:
    assert progress.best is not None and progress.best["metric"] == "macro_f1"
    return progress.best["value"], progress.best["step"]


NAN = float("nan")


def test_the_best_is_the_first_of_the_highest_finite_values() -> None:
    assert best_of(after(0.2, 0.5, 0.5, 0.4)) == (0.5, 2)
    assert best_of(after(0.5, NAN, 0.4, float("inf"))) == (0.5, 1)
    assert best_of(after(NAN, NAN, 0.4)) == (0.4, 3)
    assert best_of(after(NAN)) == (None, None)


def test_a_validation_by_which_the_metric_is_not_defined_is_neither_better_nor_no_better() -> None:
    progress = new_state()
    for progress.step in range(1, 9):
        assert progress.record_validation({"loss": 0.5}, "auc") == {}
        assert not progress.has_new_best and not progress.is_out_of_patience(1)
    assert progress.best == {"metric": "auc", "value": None, "step": None} and progress.num_without_better == 0
    progress.step = 9
    progress.record_validation({"loss": 0.5, "auc": 0.1}, "auc")
    assert progress.best_step == 9


def test_a_state_with_values_that_are_not_finite_is_plain_json_and_is_restored_as_it_was() -> None:
    written = canonical_json(after(NAN, 0.5, NAN).state_dict())
    state = json.loads(written)
    assert state["history"]["validation"][0]["metrics"] == {"loss": "nan", "macro_f1": "nan"}
    restored = new_state()
    restored.load_state_dict(state)
    assert canonical_json(restored.state_dict()) == written
    restored.step = 4
    restored.record_validation({"loss": 0.5, "macro_f1": 0.5}, "macro_f1")
    assert best_of(restored) == (0.5, 2)


def test_patience_is_lost_by_so_many_validations_in_a_row_that_are_no_better() -> None:
    waiting = after(0.2, 0.5, 0.5, NAN)
    assert (waiting.num_without_better, waiting.has_new_best) == (2, False)
    assert (waiting.is_out_of_patience(2), waiting.is_out_of_patience(3)) == (True, False)
    assert not waiting.is_out_of_patience(None)
    better = after(0.2, 0.1, 0.5)
    assert (better.num_without_better, better.has_new_best, better.is_out_of_patience(1)) == (0, True, False)
    better.step += 1  # patience is lost by a validation, and this step has none
    waiting.step += 1
    assert not better.has_new_best and not waiting.is_out_of_patience(1)
    assert after(NAN, NAN).is_out_of_patience(2)


def test_patience_goes_on_where_a_checkpoint_was() -> None:
    restored = new_state()
    restored.load_state_dict(json.loads(canonical_json(after(0.2, 0.5, 0.5, 0.4).state_dict())))
    assert restored.num_without_better == 2


def test_what_is_not_finite_is_named() -> None:
    progress = new_state()
    assert progress.record_validation({"loss": NAN, "macro_f1": 0.5}, "macro_f1") == {"loss": "nan"}
    assert progress.record_validation({"loss": 0.5, "macro_f1": 0.5}, "macro_f1") == {}


def train_on(state: TrainingState, end_step: int) -> None:
    """Steps, a point of the loss curve after each fifth, a validation after each fiftieth."""
    while state.step < end_step:
        losses = torch.tensor([1 / (state.step + 1), 0, 0, 1 / (state.step + 2)], dtype=torch.float64)
        state.curve.record(state.step + 1, losses, 0.1)
        state.step += 1
        if state.step % 50 == 0:
            state.record_validation({"loss": 1 / state.step, "macro_f1": 0.5}, "macro_f1")


def save(state: TrainingState, store: LocalStore) -> bytes:
    """As a checkpoint is saved: what is sealed first."""
    state.curve.collect(state.step)
    sealed = state.seal_history("run")
    if sealed is not None:
        sealed.write(store)
    return canonical_json(state.state_dict())


def test_the_state_does_not_grow_with_the_steps_and_the_history_stays_whole(tmp_path: Path) -> None:
    store, straight, state = LocalStore(tmp_path), new_state(), new_state()
    train_on(straight, 40_007)
    straight.curve.collect(40_007)
    sizes = []
    for step in range(1_003, 41_000, 1_003):  # saved, and continued from what was saved, again and again
        train_on(state, min(step, 40_007))
        written = save(state, store)
        sizes.append(len(written))
        state = new_state()
        state.load_state_dict(json.loads(written))
        assert state.curve.last is not None
    expected = json.loads(canonical_json(straight.state_dict()))["history"]
    assert read_whole_history(store, json.loads(written)) == expected
    assert len(expected["loss"]) == 8_001 and len(expected["validation"]) == 800
    assert max(sizes[10:]) < 1.05 * max(sizes[:10]) < 60 * MAX_RECENT
    assert state.curve.first_loss == straight.curve.points[0][1]
    assert state.best == straight.best and state.validated_step == 40_000


def test_a_state_of_a_later_version_is_refused() -> None:
    later = new_state().state_dict() | {"format": 2}
    with pytest.raises(IncompatibleRunError, match="has format 2, this version of Holdfast reads format 1"):
        new_state().load_state_dict(later)
