"""torchmetrics' functions for classification, and of torchmetrics no more than they need.

Importing any submodule of torchmetrics 1.9 executes the whole package, which loads SciPy, matplotlib and transformers
where they are installed, for sound, for plots and for scores of texts: 2.1 CPU seconds in every rank that validates,
and 0.14 without them (three times each, on two cores, torch loaded before). Invariant: they count as not installed for
torchmetrics alone, while it is loaded.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_utilities.core import imports as installed

NOT_NEEDED = {"PIL", "matplotlib", "regex", "scipy", "transformers"}


class _Requirement(installed.RequirementCache):
    """What torchmetrics asks whether it may load a package, which may be with a version, as "transformers>=4.4.0"."""

    def __bool__(self) -> bool:
        name = re.split("[<>=!~ ]", self.requirement or "", maxsplit=1)[0]
        return name not in NOT_NEEDED and super().__bool__()


def _is_available(package: str) -> bool:
    return package not in NOT_NEEDED and _ASKED["package_available"](package)


_ANSWERS: dict[str, Any] = {"RequirementCache": _Requirement, "package_available": _is_available}
_ASKED: dict[str, Any] = {name: getattr(installed, name) for name in _ANSWERS}


@contextmanager
def _nothing_unneeded() -> Iterator[None]:
    vars(installed).update(_ANSWERS)
    try:
        yield
    finally:
        vars(installed).update(_ASKED)


with _nothing_unneeded():
    from torchmetrics.functional.classification import (
        binary_auroc,
        binary_average_precision,
        binary_calibration_error,
        binary_cohen_kappa,
        binary_f1_score,
        binary_jaccard_index,
        binary_matthews_corrcoef,
        binary_negative_predictive_value,
        binary_precision,
        binary_recall,
        binary_roc,
        binary_specificity,
        multiclass_accuracy,
        multiclass_auroc,
        multiclass_average_precision,
        multiclass_calibration_error,
        multiclass_cohen_kappa,
        multiclass_f1_score,
        multiclass_jaccard_index,
        multiclass_matthews_corrcoef,
        multiclass_precision,
        multiclass_recall,
        multiclass_specificity,
        multilabel_auroc,
        multilabel_average_precision,
        multilabel_coverage_error,
        multilabel_exact_match,
        multilabel_f1_score,
        multilabel_hamming_distance,
        multilabel_jaccard_index,
        multilabel_matthews_corrcoef,
        multilabel_precision,
        multilabel_ranking_average_precision,
        multilabel_ranking_loss,
        multilabel_recall,
        multilabel_specificity,
    )

__all__ = [
    "binary_auroc",
    "binary_average_precision",
    "binary_calibration_error",
    "binary_cohen_kappa",
    "binary_f1_score",
    "binary_jaccard_index",
    "binary_matthews_corrcoef",
    "binary_negative_predictive_value",
    "binary_precision",
    "binary_recall",
    "binary_roc",
    "binary_specificity",
    "multiclass_accuracy",
    "multiclass_auroc",
    "multiclass_average_precision",
    "multiclass_calibration_error",
    "multiclass_cohen_kappa",
    "multiclass_f1_score",
    "multiclass_jaccard_index",
    "multiclass_matthews_corrcoef",
    "multiclass_precision",
    "multiclass_recall",
    "multiclass_specificity",
    "multilabel_auroc",
    "multilabel_average_precision",
    "multilabel_coverage_error",
    "multilabel_exact_match",
    "multilabel_f1_score",
    "multilabel_hamming_distance",
    "multilabel_jaccard_index",
    "multilabel_matthews_corrcoef",
    "multilabel_precision",
    "multilabel_ranking_average_precision",
    "multilabel_ranking_loss",
    "multilabel_recall",
    "multilabel_specificity",
]
