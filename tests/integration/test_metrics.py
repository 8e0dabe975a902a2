"""Metrics of predictions: what a model that has no prediction gets for them, and what samples cannot tell."""

import math
from typing import Any

import pytest
import torch

from storage.datasets import Target
from training.metrics.scores import describe, score
from training.targets import classification
from training.targets.binary import Binary
from training.targets.class_scores import MAX_MATRIX_CLASSES, tabulate_classes
from training.targets.multiclass import Multiclass
from training.targets.registry import kind_of

CLASSES = {"multiclass": ["a", "b", "c"], "binary": ["no", "yes"]}


@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_one_prediction_that_is_no_number_leaves_no_metric_and_no_table(kind: str) -> None:
    classes = CLASSES[kind]
    target = kind_of(Target(kind=kind, column="label", classes=classes, class_counts=[4] * len(classes)))
    logits, labels = torch.randn(8, 1 if kind == "binary" else 3), torch.arange(8) % len(classes)
    sound = score(logits, labels, target)
    assert all(math.isfinite(value) for value in sound.values())
    assert describe(logits, labels, target)["confusion"]
    logits[3] = math.nan
    broken = score(logits, labels, target)
    assert broken.keys() == sound.keys() and all(math.isnan(value) for value in broken.values())
    assert describe(logits, labels, target) == {"confusion": [], "per_class": [], "roc": None}


@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_counting_is_the_same_and_no_slower_where_torch_is_told_to_be_deterministic(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = [str(number) for number in range(77)] if kind == "multiclass" else ["no", "yes"]
    target = kind_of(Target(kind=kind, column="label", classes=classes, class_counts=[4] * len(classes)))
    logits, labels = torch.randn(500, 1 if kind == "binary" else 77), torch.arange(500) % len(classes)
    plain = score(logits, labels, target), describe(logits, labels, target)
    counted: list[bool] = []
    count = classification.multiclass_f1_score

    def noted(*arguments: Any, **named: Any) -> Any:
        counted.append(torch.are_deterministic_algorithms_enabled())
        return count(*arguments, **named)

    monkeypatch.setattr(classification, "multiclass_f1_score", noted)
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        assert (score(logits, labels, target), describe(logits, labels, target)) == plain
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.set_deterministic_debug_mode(mode)
    assert counted == [False] * 2


def test_the_auc_of_samples_of_one_class_is_left_out_and_so_is_their_roc_curve() -> None:
    target = Binary(CLASSES["binary"])
    logits = torch.randn(8, 1)
    for label in (0, 1):
        labels = torch.full((8,), label)
        assert score(logits, labels, target).keys() == {"loss", "accuracy", "macro_f1"}
        assert describe(logits, labels, target)["roc"] is None
    assert "auc" in score(logits, torch.arange(8) % 2, target)


def test_a_class_without_samples_has_no_scores_and_macro_f1_is_the_mean_of_those_that_there_are() -> None:
    classes = ["a", "b", "absent", "predicted only", "never predicted"]
    target = Multiclass(classes)
    labels, predicted = torch.tensor([0, 0, 1, 1, 4]), torch.tensor([0, 3, 1, 1, 0])
    logits = torch.nn.functional.one_hot(predicted, 5) * 5.0
    per_class = describe(logits, labels, target)["per_class"]
    found = {entry["class"]: [entry[name] for name in ("precision", "recall", "f1", "support")] for entry in per_class}
    assert found["absent"] == [None, None, None, 0]
    assert found["predicted only"] == [0.0, None, 0.0, 0]
    assert found["never predicted"] == [None, 0.0, 0.0, 1]
    defined = [entry["f1"] for entry in per_class if entry["f1"] is not None]
    macro_f1 = score(logits, labels, target)["macro_f1"]
    assert len(defined) == 4 and math.isclose(sum(defined) / 4, macro_f1, rel_tol=1e-6)


def test_the_confusion_of_many_classes_has_the_pairs_that_occur_and_of_few_a_matrix_the_same_numbers() -> None:
    generator = torch.Generator().manual_seed(5)
    predicted, labels = torch.randint(4, (2, 300), generator=generator)
    few = tabulate_classes(predicted, labels, ["a", "b", "c", "d"])["confusion"]
    expected = [[int(((labels == true) & (predicted == other)).sum()) for other in range(4)] for true in range(4)]
    assert few == expected
    many = tabulate_classes(predicted, labels, [str(index) for index in range(MAX_MATRIX_CLASSES + 1)])["confusion"]
    cells = zip(many["true"], many["predicted"], many["samples"], strict=True)
    assert sorted(cells) == [(t, p, few[t][p]) for t in range(4) for p in range(4) if few[t][p]]
