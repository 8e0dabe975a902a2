"""What a run remembers of its validations, whatever they gave."""

import json
from typing import Any

from storage.objects.digests import canonical_json
from training.configuration import DivergenceConfig
from training.watching.curve import LossCurve
from training.watching.training_state import TrainingState
from training.world import World


def new_state() -> TrainingState:
    return TrainingState(LossCurve(World(0, 1, 0), 5, DivergenceConfig()))


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


def test_what_is_not_finite_is_named() -> None:
    progress = new_state()
    assert progress.record_validation({"loss": NAN, "macro_f1": 0.5}, "macro_f1") == {"loss": "nan"}
    assert progress.record_validation({"loss": 0.5, "macro_f1": 0.5}, "macro_f1") == {}
