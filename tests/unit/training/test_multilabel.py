"""A target with any number of labels: its loss, weights, scores and thresholds, against numbers counted by hand."""

import math
from typing import Any

import pytest
import torch

from training.metrics.calibration import calibrate
from training.metrics.scores import describe, score
from training.targets.multilabel import Multilabel

KIND = Multilabel(["a", "b", "c", "never"])
# Predicted are a; a and b; b; nothing. The samples have a; a; b and c; nothing.
LOGITS = torch.tensor(
    [[2.0, -1.0, -1.0, -9.0], [1.0, 3.0, -2.0, -9.0], [-3.0, 1.0, -1.5, -9.0], [-1.0, -2.0, -3.0, -9.0]]
)
LABELS = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])


def test_the_loss_is_the_mean_of_the_binary_cross_entropies_of_the_labels() -> None:
    expected = [
        sum(math.log1p(math.exp(-logit if label else logit)) for logit, label in zip(*sample, strict=True)) / 4
        for sample in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)
    ]
    assert KIND.sample_losses(LOGITS, LABELS).tolist() == pytest.approx(expected, rel=1e-5)


def test_each_label_is_weighted_as_a_binary_target_of_its_own_is_with_mean_1() -> None:
    weights = KIND.class_weights([10, 50, 90, 1], 100, 1.0)
    assert weights[0].tolist() == pytest.approx([0.5 / 0.9, 0.5 / 0.1])  # of those without it, of those with it
    shares = torch.tensor([0.1, 0.5, 0.9, 0.01])
    assert ((1 - shares) * weights[:, 0] + shares * weights[:, 1]).tolist() == pytest.approx([1.0] * 4)
    alone = Multilabel(["a"])
    found = alone.weighted_losses(LOGITS[:, :1], LABELS[:, :1], weights[:1])
    plain = alone.sample_losses(LOGITS[:, :1], LABELS[:, :1])
    assert (found / plain).tolist() == pytest.approx([5.0, 5.0, 0.5 / 0.9, 0.5 / 0.9])


def test_scores_are_those_of_their_definitions_and_leave_out_classes_that_no_sample_has() -> None:
    found = score(LOGITS, LABELS, Multilabel(KIND.classes, ["hamming_distance", "auroc"]))
    f1 = [1.0, 2 / 3, 0.0]  # of a, b and c; the last class has none
    assert found["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert found["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert found["exact_match"] == pytest.approx(2 / 4)
    # a is ranked before all others; b second behind one without it; c second of four.
    assert found["mean_average_precision"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert found["auroc"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert found["hamming_distance"] == pytest.approx(2 / 16)


def test_each_label_has_its_scores_and_what_is_not_defined_is_none() -> None:
    tables = describe(LOGITS, LABELS, KIND)
    assert tables["confusion"] == [] and tables["roc"] is None
    assert tables["per_class"] == [
        {"class": "a", "precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 2, "auc": 1.0},
        {"class": "b", "precision": 0.5, "recall": 1.0, "f1": 2 / 3, "support": 1, "auc": pytest.approx(2 / 3)},
        {"class": "c", "precision": None, "recall": 0.0, "f1": 0.0, "support": 1, "auc": pytest.approx(2 / 3)},
        {"class": "never", "precision": None, "recall": None, "f1": None, "support": 0, "auc": None},
    ]


def test_samples_without_any_label_have_no_mean_average_precision_and_no_calibration() -> None:
    nothing = torch.zeros_like(LABELS)
    assert "mean_average_precision" not in score(LOGITS, nothing, KIND)
    found = calibrate((LOGITS, nothing), (LOGITS, LABELS), KIND, 4)
    assert found["temperature"] is None and found["reason"].endswith("have the same labels")


def test_each_label_has_its_own_threshold_with_the_best_f1_of_validation_measured_on_test() -> None:
    measured = LOGITS.flip(0), LABELS.flip(0)
    found: dict[str, Any] = calibrate((LOGITS, LABELS), measured, KIND, 4)
    assert found["fitted_on"]["num_samples"] == 4
    assert sum(part["num_samples"] for part in found["bins"]["after"]) == LABELS.numel()
    of_each = {entry["class"]: entry["best"] for entry in found["thresholds"]["per_class"]}
    assert of_each["never"] is None
    of_a, of_b, of_c = (of_each[name] for name in "abc")
    assert (of_a["f1"], of_a["num_positive"], of_a["measured"]["f1"]) == (1.0, 2, 1.0)
    probabilities = (LOGITS[:, 0].double() / found["temperature"]).sigmoid().tolist()
    assert of_a["threshold"] == pytest.approx((probabilities[1] + probabilities[3]) / 2)
    assert of_b["f1"] == of_c["f1"] == pytest.approx(2 / 3)
    assert of_c["threshold"] < 0.5 < of_a["recall"]
