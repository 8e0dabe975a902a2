"""The kinds of target by name, and the names of the metrics by which each is judged.

What a kind computes is in `training/targets/`; this is what configuration and reports must know of it, which load no
torch. Invariant: every kind has metrics, the most informative one first, and the loss last.
"""

from typing import Any, Literal

KindName = Literal["multiclass", "binary"]
METRICS: dict[str, tuple[str, ...]] = {
    "multiclass": ("macro_f1", "accuracy", "loss"),
    "binary": ("auc", "macro_f1", "accuracy", "loss"),
}
# Of all kinds, for what shows metrics without knowing of which kind they are; the loss is shown apart, or last.
MOST_TELLING = ("auc", "macro_f1", "accuracy")


def headline_metric(kind: Any) -> str:
    """The one number by which models of this kind are compared; higher is better. Of an unknown kind macro-F1."""
    return METRICS.get(kind, METRICS["multiclass"])[0]


def telling_order(metric: str) -> tuple[int, str]:
    """Key by which metrics are sorted: the most informative first, then all others by name."""
    return (MOST_TELLING.index(metric) if metric in MOST_TELLING else len(MOST_TELLING), metric)
