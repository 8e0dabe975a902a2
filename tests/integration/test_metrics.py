"""Metrics of predictions: what a model that has no prediction gets for them."""

import math
from typing import Any

import pytest
import torch

from storage.datasets import Target
from training.model.objective import Objective
from training.watching import classification
from training.watching.metrics import describe, score

CLASSES = {"multiclass": ["a", "b", "c"], "binary": ["no", "yes"]}


@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_one_prediction_that_is_no_number_leaves_no_metric_and_no_table(kind: str) -> None:
    classes = CLASSES[kind]
    target = Target(kind=kind, column="label", classes=classes, class_counts=[4] * len(classes))
    objective = Objective(target, 0.0, 0.0, 4)
    logits, labels = torch.randn(8, 1 if kind == "binary" else 3), torch.arange(8) % len(classes)
    sound = score(logits, labels, target, objective)
    assert all(math.isfinite(value) for value in sound.values())
    assert describe(logits, labels, target)["confusion"]
    logits[3] = math.nan
    broken = score(logits, labels, target, objective)
    assert broken.keys() == sound.keys() and all(math.isnan(value) for value in broken.values())
    assert describe(logits, labels, target) == {"confusion": [], "per_class": [], "roc": None}


@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_counting_is_the_same_and_no_slower_where_torch_is_told_to_be_deterministic(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = [str(number) for number in range(77)] if kind == "multiclass" else ["no", "yes"]
    target = Target(kind=kind, column="label", classes=classes, class_counts=[4] * len(classes))
    objective = Objective(target, 0.0, 0.0, 4)
    logits, labels = torch.randn(500, 1 if kind == "binary" else 77), torch.arange(500) % len(classes)
    plain = score(logits, labels, target, objective), describe(logits, labels, target)
    counted: list[bool] = []
    for name in ("multiclass_f1_score", "multiclass_confusion_matrix"):
        count = getattr(classification, name)

        def noted(*arguments: Any, count: Any = count, **named: Any) -> Any:
            counted.append(torch.are_deterministic_algorithms_enabled())
            return count(*arguments, **named)

        monkeypatch.setattr(classification, name, noted)
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        assert (score(logits, labels, target, objective), describe(logits, labels, target)) == plain
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.set_deterministic_debug_mode(mode)
    assert counted == [False] * 3
