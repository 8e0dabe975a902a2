"""Metrics of the linear model are the numbers by which networks are scored."""

import numpy as np
import pytest
import torch

from storage.target_kinds import METRICS
from tasks.baselines.scores import score_outputs
from training.metrics.scores import score
from training.targets.binary import Binary
from training.targets.kind import TargetKind
from training.targets.multiclass import Multiclass
from training.targets.multilabel import Multilabel

ROWS = 200
NAMES = ["a", "b", "c", "never"]


@pytest.mark.parametrize("kind", [Multiclass(NAMES), Binary(["no", "yes"]), Multilabel(NAMES)], ids=METRICS)
def test_they_are_those_of_the_kind_of_target(kind: TargetKind) -> None:
    generator = np.random.Generator(np.random.Philox(3))
    # Rounded, so that some are equal; the last class has no sample and, of several, no prediction.
    logits = np.round(generator.normal(size=(ROWS, kind.num_outputs)), 1).astype(np.float32)
    if kind.num_outputs > 1:
        logits[:, -1] -= 9
    labels = generator.integers(0, 2 if kind.num_outputs == 1 else 3, (ROWS, *kind.label_shape))
    if kind.label_shape:
        labels = (labels > 1).astype(np.uint8)
        labels[:, -1] = 0
    name = dict(zip((Multiclass, Binary, Multilabel), METRICS, strict=True))[type(kind)]
    outputs = logits.argmax(axis=1) if name == "multiclass" else logits
    expected = score(torch.tensor(logits), torch.tensor(labels, dtype=torch.int64), kind)
    found = score_outputs(name, outputs, labels, len(kind.classes))
    assert {*found, "loss"} == {*METRICS[name]} == set(expected)
    assert found == pytest.approx({metric: expected[metric] for metric in found}, abs=1e-6)


def test_what_is_not_defined_is_left_out() -> None:
    scores = np.array([[1.0], [-1.0]], np.float32)
    assert score_outputs("binary", scores, np.array([1, 1]), 2).keys() == {"accuracy", "macro_f1"}
    none = score_outputs("multilabel", -np.ones((2, 3), np.float32), np.zeros((2, 3), np.uint8), 3)
    assert none == {"exact_match": 1.0, "micro_f1": 0.0, "macro_f1": 0.0}
