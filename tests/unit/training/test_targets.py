"""The contract of a kind of target, held against each; and that nothing else in training knows which there are."""

import ast
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from storage.datasets import Target
from storage.target_kinds import METRICS, KindName, headline_metric, telling_order
from tests.helpers.small_models import make_model
from training.metrics.scores import NO_TABLES, describe, score
from training.targets.kind import TargetKind
from training.targets.registry import KINDS, kind_of

TRAINING = Path(__file__).parents[3] / "training"
CLASSES = {"multiclass": ["a", "b", "c", "d"], "binary": ["no", "yes"]}
each_kind = pytest.mark.parametrize("name", KINDS)


def make_kind(name: str) -> TargetKind:
    classes = CLASSES[name]
    return kind_of(Target(kind=name, column="label", classes=classes, class_counts=[1] * len(classes)))


def drawn(kind: TargetKind, num_samples: int = 50) -> tuple[Tensor, Tensor]:
    """Logits [N, outputs] in fp32 and labels [N]."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(num_samples, kind.num_outputs, generator=generator) * 3
    return logits, torch.randint(len(kind.classes), (num_samples,), generator=generator)


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
    torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(losses, kind.sample_losses(logits.bfloat16(), labels))
    probabilities = kind.probabilities(logits.double())
    torch.testing.assert_close(probabilities, options.softmax(dim=1))
    assert torch.equal(kind.predict(logits), probabilities.argmax(dim=1))


@each_kind
def test_smoothing_moves_a_label_towards_all_classes_alike(name: str) -> None:
    kind = make_kind(name)
    logits, labels = drawn(kind)
    of_each = torch.stack([kind.sample_losses(logits, torch.full_like(labels, c)) for c in range(len(kind.classes))])
    expected = 0.8 * kind.sample_losses(logits, labels) + 0.2 * of_each.mean(dim=0)
    torch.testing.assert_close(kind.sample_losses(logits, labels, 0.2), expected)


@each_kind
def test_a_sample_has_the_loss_and_the_weight_that_it_has_alone(name: str) -> None:
    kind = make_kind(name)
    logits, labels = drawn(kind)
    alone = [kind.sample_losses(logits[i : i + 1], labels[i : i + 1], 0.1) for i in range(len(labels))]
    assert torch.equal(torch.cat(alone), kind.sample_losses(logits, labels, 0.1))
    weights = torch.rand(len(kind.classes))
    assert kind.sample_weights(labels, weights).tolist() == [weights[label].item() for label in labels]


@each_kind
def test_scores_are_the_named_ones_from_the_least_telling_on_and_come_with_known_tables(name: str) -> None:
    kind = make_kind(name)
    predictions = drawn(kind)
    assert list(score(*predictions, kind)) == list(reversed(kind.metrics))
    assert kind.tables(*predictions).keys() <= NO_TABLES.keys() == describe(*predictions, kind).keys()


@each_kind
def test_an_exported_model_says_of_logits_what_the_kind_says_of_them(name: str) -> None:
    kind, exported = make_kind(name), make_model(name, CLASSES[name])
    logits, _ = drawn(kind)
    assert torch.equal(exported.probabilities_of(logits), kind.probabilities(logits.double()))
    assert exported.labels_of(logits) == [kind.classes[place] for place in kind.predict(logits).tolist()]


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
