"""Metrics of predictions: what a model that has no prediction gets for them."""

import math

import pytest
import torch

from storage.datasets import Target
from training.model.objective import Objective
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
