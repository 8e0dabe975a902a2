"""The contract of a kind of target, held against each; and that nothing else in training knows which there are."""

import ast
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from storage.datasets import Target
from storage.runs.metric_values import METRIC_WORDS
from storage.target_kinds import (
    EXTRA_METRICS,
    FEWEST_CLASSES,
    METRICS,
    NEED_CLASSES,
    KindName,
    headline_metric,
    telling_order,
)
from tests.helpers.small_models import make_model
from training.metrics.calibration import calibrate
from training.metrics.scores import NO_TABLES, describe, score
from training.targets.kind import TargetKind
from training.targets.registry import KINDS, kind_of

TRAINING = Path(__file__).parents[3] / "training"
CLASSES = {"multiclass": ["a", "b", "c", "d"], "binary": ["no", "yes"], "multilabel": ["a", "b", "c"]}
each_kind = pytest.mark.parametrize("name", KINDS)


def make_kind(name: str, extra_metrics: Sequence[str] = ()) -> TargetKind:
    classes = CLASSES[name]
    target = Target(kind=name, column="label", classes=classes, class_counts=[1] * len(classes))
    return kind_of(target, extra_metrics)


def drawn(kind: TargetKind, num_samples: int = 50) -> tuple[Tensor, Tensor]:
    """Logits [N, outputs] in fp32 and labels [N, ...]."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(num_samples, kind.num_outputs, generator=generator) * 3
    num_options = 2 if kind.label_shape else len(kind.classes)
    return logits, torch.randint(num_options, (num_samples, *kind.label_shape), generator=generator)


def test_every_kind_that_can_be_configured_is_implemented_and_has_metrics_of_which_the_loss_is_the_last() -> None:
    assert set(KINDS) == set(METRICS) == set(get_args(KindName)) == set(CLASSES)
    for name in KINDS:
        assert make_kind(name).metrics[0] == headline_metric(name)
        *others, last = make_kind(name).metrics
        assert last == "loss" and others == sorted(others, key=telling_order)


@each_kind
def test_loss_probabilities_and_predictions_are_those_of_the_decisions(name: str) -> None:
    kind = make_kind(name)
    logits, labels = drawn(kind)
    options, right = kind.decisions(logits, labels)
    losses = kind.sample_losses(logits.bfloat16().float(), labels)
    expected = torch.nn.functional.cross_entropy(kind.decisions(logits.bfloat16(), labels)[0], right, reduction="none")
    assert losses.dtype == torch.float32 and options.dtype == torch.float64
    expected = expected.reshape(len(labels), -1).mean(dim=1)
    torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(losses, kind.sample_losses(logits.bfloat16(), labels))
    probabilities = options.softmax(dim=1)
    assert torch.equal(kind.predict(logits), probabilities.argmax(dim=1).reshape(labels.shape))
    of_classes = probabilities[:, 1].reshape(labels.shape) if kind.label_shape else probabilities
    torch.testing.assert_close(kind.probabilities(logits.double()), of_classes)


@each_kind
def test_smoothing_moves_a_label_towards_all_classes_alike(name: str) -> None:
    kind = make_kind(name)
    logits, labels = drawn(kind)
    options = range(2 if kind.label_shape else len(kind.classes))
    of_each = torch.stack([kind.sample_losses(logits, torch.full_like(labels, option)) for option in options])
    expected = 0.8 * kind.sample_losses(logits, labels) + 0.2 * of_each.mean(dim=0)
    torch.testing.assert_close(kind.sample_losses(logits, labels, 0.2), expected)


@each_kind
def test_a_sample_has_the_loss_and_the_weight_that_it_has_alone(name: str) -> None:
    kind = make_kind(name)
    logits, labels = drawn(kind)
    weights = kind.class_weights(list(range(1, len(kind.classes) + 1)), 100, 0.5)
    alone = [kind.weighted_losses(logits[i : i + 1], labels[i : i + 1], weights, 0.1) for i in range(len(labels))]
    found = kind.weighted_losses(logits, labels, weights, 0.1)
    assert torch.equal(torch.cat(alone), found) and found.shape == labels.shape[:1]
    unweighted = kind.class_weights([1] * len(kind.classes), 100, 0.0)
    assert torch.equal(kind.weighted_losses(logits, labels, unweighted), kind.sample_losses(logits, labels))


@each_kind
def test_scores_are_the_named_ones_from_the_least_telling_on_and_come_with_known_tables(name: str) -> None:
    kind = make_kind(name)
    predictions = drawn(kind)
    assert list(score(*predictions, kind)) == list(reversed(kind.metrics))
    assert kind.tables(*predictions).keys() <= NO_TABLES.keys() == describe(*predictions, kind).keys()


@each_kind
def test_each_further_metric_is_computed_the_usual_ones_stay_as_they_are_and_their_order_is_that_of_all(
    name: str,
) -> None:
    extra = list(EXTRA_METRICS[name])
    kind, usual = make_kind(name, extra), make_kind(name)
    logits, labels = drawn(kind)
    found, plain = score(logits, labels, kind), score(logits, labels, usual)
    assert list(found) == list(reversed(kind.metrics)) and kind.metrics[0] == headline_metric(name)
    assert list(kind.metrics[:-1]) == sorted(kind.metrics[:-1], key=telling_order)
    assert found.keys() - plain.keys() == set(extra) and {name: found[name] for name in plain} == plain
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        assert score(logits, labels, kind) == found
    finally:
        torch.set_deterministic_debug_mode(mode)
    logits[0] = math.nan
    assert list(score(logits, labels, kind)) == list(found)


@each_kind
def test_further_metrics_of_samples_of_one_class_are_left_out_where_they_compare_classes(name: str) -> None:
    kind = make_kind(name, list(EXTRA_METRICS[name]))
    for label in range(2):
        logits = torch.zeros(8, kind.num_outputs)
        found = score(logits, torch.full((8, *kind.label_shape), label), kind)
        undefined = NEED_CLASSES & set(kind.metrics)
        if label == FEWEST_CLASSES[name]:  # all samples have all classes: enough for the average precision
            undefined.discard("mean_average_precision")
        assert set(kind.metrics) - found.keys() == undefined
        assert not any(math.isnan(value) for value in found.values())
    assert set(METRIC_WORDS) >= NEED_CLASSES  # a person is told of them in words


def test_further_metrics_are_those_of_their_definitions() -> None:
    binary = make_kind("binary", ["matthews_corrcoef", "precision", "recall", "average_precision"])
    logits, labels = torch.tensor([[3.0], [2.0], [1.0], [-1.0], [-2.0], [-3.0]]), torch.tensor([1, 0, 1, 1, 0, 0])
    found = score(logits, labels, binary)  # 2 true and 1 false positives, 1 false and 2 true negatives
    assert found["precision"] == found["recall"] == pytest.approx(2 / 3)
    assert found["matthews_corrcoef"] == pytest.approx((2 * 2 - 1 * 1) / 9)
    assert found["average_precision"] == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)
    multiclass = make_kind("multiclass", ["auroc", "recall"])
    labels = torch.tensor([0, 0, 1, 1, 2])  # of the fourth class there is none
    found = score(50 * torch.eye(4)[torch.tensor([0, 1, 1, 1, 2])], labels, multiclass)
    assert found["recall"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert found["auroc"] == pytest.approx((3 / 4 + 5 / 6 + 1) / 3)


@each_kind
def test_an_exported_model_says_of_logits_what_the_kind_says_of_them(name: str) -> None:
    kind, exported = make_kind(name), make_model(name, CLASSES[name])
    logits, _ = drawn(kind)
    assert torch.equal(exported.probabilities_of(logits), kind.probabilities(logits.double()))
    assert exported.outputs.num_outputs == kind.num_outputs
    predicted = kind.predict(logits).tolist()
    if kind.label_shape:
        named = [[name for name, is_had in zip(kind.classes, row, strict=True) if is_had] for row in predicted]
        assert exported.outputs.answer == "labels" and exported.outputs.predict(logits) == named
    else:
        assert exported.outputs.predict(logits) == [kind.classes[place] for place in predicted]


@pytest.mark.parametrize("name", ["binary", "multilabel"])
def test_an_exported_model_predicts_by_fitted_thresholds_what_they_were_measured_by(name: str) -> None:
    kind, exported = make_kind(name), make_model(name, CLASSES[name])
    logits, labels = drawn(kind)
    if kind.label_shape:
        labels[:, -1] = 0  # a class that no row has, which has no threshold
    both = logits, labels
    fitted = json.loads(json.dumps(calibrate(both, both, kind, len(labels))))
    exported.temperature, exported.thresholds = fitted["temperature"], exported.outputs.fitted_thresholds(fitted)
    answers, probabilities = exported.answers_of(logits)
    assert torch.equal(probabilities, exported.probabilities_of(logits))
    assert answers != exported.outputs.predict(logits)
    best = fitted["thresholds"]
    measured = [one["best"] for one in best["per_class"]] if kind.label_shape else [best["best"]]
    names = kind.classes if kind.label_shape else kind.classes[1:]
    for place, (of_class, one) in enumerate(zip(names, measured, strict=True)):
        found = sum(of_class in answer if kind.label_shape else of_class == answer for answer in answers)
        assert found == (int((logits[:, place] > 0).sum()) if one is None else one["num_positive"])
    assert (None in measured) == bool(kind.label_shape)


def test_nothing_else_in_training_names_a_kind_but_an_export_which_needs_no_holdfast() -> None:
    apart = {TRAINING / "targets", TRAINING / "export" / "standalone"}
    for path in TRAINING.rglob("*.py"):
        values = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert path.parent in apart or not values & set(KINDS), path


def test_torchmetrics_is_loaded_by_no_module_of_training_that_is_not_about_to_score() -> None:
    for path in TRAINING.rglob("*.py"):
        names = {
            f"{node.module}.{alias.name}"
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert "training.targets.classification" not in names, path
