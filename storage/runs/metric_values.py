"""A metric's value as it is kept in JSON: a number, or the text "nan", "inf" or "-inf" where it is not a finite one.

JSON has no such numbers (RFC 8259, section 6). Invariant: text counts as no value wherever values are compared; and it
equals itself, which a NaN does not, so that records can be compared. `float()` reads both forms.
"""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import FiniteFloat

METRIC_WORDS = {
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "exact_match": "exact match",
    "mean_average_precision": "mean average precision",
    "auc": "ROC AUC",
    "auroc": "macro ROC AUC",
    "average_precision": "average precision",
    "calibration_error": "calibration error",
    "cohen_kappa": "Cohen's kappa",
    "coverage_error": "coverage error",
    "f1_score": "F1",
    "hamming_distance": "Hamming distance",
    "jaccard_index": "Jaccard index",
    "matthews_corrcoef": "Matthews correlation",
    "negative_predictive_value": "negative predictive value",
    "ranking_average_precision": "ranking average precision",
    "ranking_loss": "ranking loss",
}
NotFinite = Literal["nan", "inf", "-inf"]
MetricValue = FiniteFloat | NotFinite


def metric_value(number: float) -> MetricValue:
    """How `number` is kept."""
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "nan"
    return "inf" if number > 0 else "-inf"


def find_not_finite(metrics: Mapping[str, MetricValue]) -> dict[str, NotFinite]:
    """Those of some metrics that are not finite, by their names."""
    return {name: value for name, value in metrics.items() if isinstance(value, str)}


def describe_not_finite(metrics: Mapping[str, NotFinite]) -> str:
    """'loss = nan, macro_f1 = nan'."""
    return ", ".join(f"{name} = {value}" for name, value in metrics.items())
