"""The kinds of target by name, and the names of the metrics by which each is judged.

What a kind computes is in `training/targets/`; this is what configuration and reports must know of it, which load no
torch. Invariant: every kind has metrics, the most telling one first, and the loss last.
"""

from typing import Any, Literal

KindName = Literal["multiclass", "binary"]
METRICS: dict[str, tuple[str, ...]] = {
    "multiclass": ("macro_f1", "accuracy", "loss"),
    "binary": ("auc", "macro_f1", "accuracy", "loss"),
}


def headline_metric(kind: Any) -> str:
    """The one number by which models of this kind are compared; higher is better. Of an unknown kind macro-F1."""
    return METRICS.get(kind, METRICS["multiclass"])[0]
