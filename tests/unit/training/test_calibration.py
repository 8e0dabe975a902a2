"""Temperature, calibration error and thresholds, against what is known of made-up logits or counted by hand."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from training.metrics.calibration import MOST_ROWS, calibrate, most_rows
from training.metrics.reliability import NUM_BINS, calibration_error, claims, fill_bins
from training.metrics.temperature import HIGHEST, LOWEST, Temperature, fit_temperature, mean_loss
from training.targets.binary import Binary
from training.targets.kind import TargetKind
from training.targets.multiclass import Multiclass
from training.targets.thresholds import find_best, list_thresholds, score_at

BINARY, THREE = Binary(["no", "yes"]), Multiclass(["a", "b", "c"])


def drawn(num_rows: int, num_classes: int, divided_by: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [N, C], and labels drawn from softmax(logits / divided_by): this temperature is the right one."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, num_classes, generator=generator, dtype=torch.float64) * 3
    labels = torch.multinomial(torch.softmax(logits / divided_by, dim=1), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize("right", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_labels_is_found(right: float) -> None:
    found = fit_temperature(*drawn(40_000, 4, right))
    assert not found.is_bounded
    assert found.value == pytest.approx(right, rel=0.03)


def test_the_loss_is_smallest_at_the_temperature() -> None:
    logits, labels = drawn(2_000, 3, 2.0)
    found = fit_temperature(logits, labels).value
    beside = [mean_loss(logits, labels, found * factor) for factor in (0.98, 0.999, 1.001, 1.02)]
    assert mean_loss(logits, labels, found) < min(beside)


def test_two_logits_of_which_three_in_four_are_right_have_the_temperature_that_is_computed_by_hand() -> None:
    """sigmoid(2 / T) = 3 / 4 where T = 2 / ln 3."""
    decisions = BINARY.decisions(torch.tensor([[2.0]] * 4), torch.tensor([1, 1, 1, 0]))
    assert fit_temperature(*decisions).value == pytest.approx(2 / math.log(3), abs=1e-9)


def test_a_model_that_is_never_wrong_and_one_that_knows_less_than_nothing_have_a_bounded_temperature() -> None:
    logits, labels = torch.eye(3, dtype=torch.float64) * 4, torch.arange(3)
    assert fit_temperature(logits, labels) == Temperature(LOWEST, True)
    assert fit_temperature(logits, (labels + 1) % 3) == Temperature(HIGHEST, True)
    assert fit_temperature(torch.zeros(3, 3, dtype=torch.float64), labels) == Temperature(HIGHEST, True)


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    # Not at the top: it takes seconds to load, in each worker, while tests are collected.
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    logits, labels = drawn(3_000, 3, 2.5)
    error = calibration_error(fill_bins(*claims(logits, labels, 1.0, THREE)))
    expected = multiclass_calibration_error(torch.softmax(logits, dim=1), labels, 3, n_bins=NUM_BINS)
    assert error == pytest.approx(float(expected), abs=1e-6)
    single, truth = logits[:, :1], (labels == 0).long()
    error = calibration_error(fill_bins(*claims(single, truth, 1.0, BINARY)))
    expected = binary_calibration_error(torch.sigmoid(single[:, 0]), truth, n_bins=NUM_BINS)
    assert error == pytest.approx(float(expected), abs=1e-6)


def test_bins_say_what_was_claimed_and_what_came_true() -> None:
    bins = fill_bins(torch.tensor([0.82, 0.84, 0.10, 1.0]), torch.tensor([True, False, False, True]))
    found = [(one["num_samples"], one["claimed"], one["came_true"]) for one in bins]
    expected = [(1, 0.10, 0.0), (2, 0.83, 0.5), (1, 1.0, 1.0)]
    assert [tuple(map(float, one)) for one in found] == [pytest.approx(one) for one in expected]
    assert calibration_error(bins) == pytest.approx((0.10 + 2 * 0.33) / 4)
    assert all(one["from"] <= one["claimed"] <= one["to"] for one in bins)


PROBABILITIES = torch.tensor([0.9, 0.8, 0.8, 0.4, 0.2], dtype=torch.float64)
LABELS = torch.tensor([1, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("threshold", "precision", "recall", "f1", "num_positive"),
    [(0.5, 2 / 3, 2 / 3, 2 / 3, 3), (0.9, 1.0, 1 / 3, 1 / 2, 1), (0.1, 3 / 5, 1.0, 3 / 4, 5), (0.95, None, 0, 0, 0)],
)
def test_the_scores_at_a_threshold_are_those_counted_by_hand(
    threshold: float, precision: float | None, recall: float, f1: float, num_positive: int
) -> None:
    found = score_at(PROBABILITIES, LABELS, threshold)
    assert found == pytest.approx(
        {"threshold": threshold, "precision": precision, "recall": recall, "f1": f1, "num_positive": num_positive}
    )


def test_the_best_threshold_has_the_highest_f1_and_lies_between_two_probabilities() -> None:
    best = find_best(PROBABILITIES, LABELS)
    assert best == pytest.approx(0.3)
    scores = [score_at(PROBABILITIES, LABELS, number / 1000)["f1"] for number in range(1001)]
    assert score_at(PROBABILITIES, LABELS, best)["f1"] == max(scores) == pytest.approx(6 / 7)


def test_no_threshold_parts_samples_of_one_probability() -> None:
    same = torch.full((4,), 0.7, dtype=torch.float64)
    best = find_best(same, torch.tensor([1, 0, 0, 0]))
    assert score_at(same, torch.tensor([1, 0, 0, 0]), best)["num_positive"] == 4


def test_the_best_of_many_drawn_ones_is_the_best_of_all() -> None:
    logits, labels = drawn(300, 2, 1.0)
    probabilities = torch.softmax(logits, dim=1)[:, 1]
    best = score_at(probabilities, labels, find_best(probabilities, labels))
    assert best["f1"] == max(score_at(probabilities, labels, value)["f1"] for value in probabilities.tolist())
    assert best["f1"] >= max(one["f1"] for one in list_thresholds(probabilities, labels))


@pytest.mark.parametrize("kind", [BINARY, THREE], ids=["binary", "multiclass"])
def test_a_calibration_lowers_the_loss_and_the_error_and_can_be_written_down(kind: TargetKind) -> None:
    def predictions(seed: int) -> tuple[Tensor, Tensor]:
        logits, labels = drawn(4_000, len(kind.classes), 3.0, seed)
        return (logits[:, 1:] - logits[:, :1] if kind.num_outputs == 1 else logits).float(), labels

    found = calibrate(predictions(1), predictions(2), kind, num_rows=9_000)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["temperature"] == pytest.approx(3, rel=0.1)
    assert found["loss"]["after"] < found["loss"]["before"]
    assert found["calibration_error"]["after"] < found["calibration_error"]["before"] / 3
    assert found["fitted_on"] == {"split": "validation", "num_samples": 4_000, "num_rows": 9_000}
    assert (found["thresholds"] is None) == (kind is THREE)


def test_it_does_not_depend_on_how_a_large_split_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = drawn(1_000, 3, 2.0)
    whole = claims(logits, labels, 2.0, THREE)
    monkeypatch.setattr("training.metrics.reliability.ROWS_AT_A_TIME", 7)
    assert all(map(torch.equal, whole, claims(logits, labels, 2.0, THREE)))


def no_number(logits: Tensor) -> Tensor:
    logits = logits.clone()
    logits[1] = math.inf
    return logits


@pytest.mark.parametrize(
    ("fitted_on", "measured_on", "reason"),
    [
        (None, slice(None), "the validation split has no rows"),
        (slice(0, 0), slice(None), "the validation split has no rows"),
        (slice(None), slice(0, 0), "the test split has no rows"),
        (slice(0, 1), slice(None), "have the same label"),
    ],
)
def test_where_there_is_nothing_to_fit_it_says_why(fitted_on: Any, measured_on: slice, reason: str) -> None:
    logits, labels = drawn(20, 3, 1.0)
    fitted = None if fitted_on is None else (logits[fitted_on], labels[fitted_on])
    found = calibrate(fitted, (logits[measured_on], labels[measured_on]), THREE, 20)
    assert found["temperature"] is None
    assert reason in found["reason"]


def test_an_output_that_is_not_finite_is_not_calibrated() -> None:
    logits, labels = drawn(20, 3, 1.0)
    assert "not a finite number" in calibrate((no_number(logits), labels), (logits, labels), THREE, 20)["reason"]
    assert "not a finite number" in calibrate((logits, labels), (no_number(logits), labels), THREE, 20)["reason"]


def test_the_rows_that_are_looked_at_are_bounded_and_fewer_for_many_classes() -> None:
    assert most_rows(THREE) == MOST_ROWS
    many = Multiclass([str(number) for number in range(10_000)])
    assert most_rows(many) == 1677
