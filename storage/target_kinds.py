"""The kinds of target by name, and the names of the metrics by which each is judged.

What a kind computes is in `training/targets/`; this is what configuration and reports must know of it, which load no
torch. Invariant: every kind has metrics, the most informative one first, and the loss last.
"""

from collections.abc import Iterable
from typing import Any, Literal

KindName = Literal["multiclass", "binary", "multilabel"]
METRICS: dict[str, tuple[str, ...]] = {
    "multiclass": ("macro_f1", "accuracy", "loss"),
    "binary": ("auc", "macro_f1", "accuracy", "loss"),
    "multilabel": ("mean_average_precision", "macro_f1", "micro_f1", "exact_match", "loss"),
}
# What a run may ask for beside them, by names of torchmetrics, and whether higher is better.
EXTRA_METRICS: dict[str, dict[str, bool]] = {
    "multiclass": {
        "auroc": True,
        "average_precision": True,
        "calibration_error": False,
        "cohen_kappa": True,
        "jaccard_index": True,
        "matthews_corrcoef": True,
        "precision": True,
        "recall": True,
        "specificity": True,
    },
    "binary": {
        "average_precision": True,
        "calibration_error": False,
        "cohen_kappa": True,
        "f1_score": True,
        "jaccard_index": True,
        "matthews_corrcoef": True,
        "negative_predictive_value": True,
        "precision": True,
        "recall": True,
        "specificity": True,
    },
    "multilabel": {
        "auroc": True,
        "coverage_error": False,
        "hamming_distance": False,
        "jaccard_index": True,
        "matthews_corrcoef": True,
        "precision": True,
        "ranking_average_precision": True,
        "ranking_loss": False,
        "recall": True,
        "specificity": True,
    },
}
# They compare classes: of samples that are all of one class they are not defined, or where each may have several, of
# samples that have none.
NEED_CLASSES = {"auc", "auroc", "average_precision", "cohen_kappa", "mean_average_precision"}
FEWEST_CLASSES = {"multiclass": 2, "binary": 2, "multilabel": 1}
# Of all kinds, for what shows metrics without knowing of which kind they are; the loss is shown apart, or last.
MOST_TELLING = ("auc", "mean_average_precision", "macro_f1", "micro_f1", "accuracy", "exact_match")


def headline_metric(kind: Any, chosen: str | None = None) -> str:
    """The one number by which models of this kind are compared; higher is better. Of an unknown kind macro-F1.

    `chosen` is the run's own choice, `validation.metric_for_best_model`.
    """
    return chosen or METRICS.get(kind, METRICS["multiclass"])[0]


def metrics_with(kind: str, extra: Iterable[str]) -> tuple[str, ...]:
    """All metrics of a run of this kind that asks for `extra` ones, the loss last."""
    *usual, loss = METRICS[kind]
    return (*usual, *sorted(extra), loss)


def telling_order(metric: str) -> tuple[int, str]:
    """Key by which metrics are sorted: the most informative first, then all others by name."""
    return (MOST_TELLING.index(metric) if metric in MOST_TELLING else len(MOST_TELLING), metric)
