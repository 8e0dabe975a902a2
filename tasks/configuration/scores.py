"""What a run may be asked to score beyond the usual: further metrics, slices, and which metric decides.

Invariant: pure; a name that is not known is one error, with the names that are.
"""

from collections import Counter
from collections.abc import Sequence

from storage.target_kinds import EXTRA_METRICS, METRICS, metrics_with


def require_slices(slices: Sequence[str], categorical: Sequence[str], numeric: Sequence[str]) -> None:
    """Raise `ValueError` unless `validation.slices` names categorical columns, each once."""
    for column in slices:
        if column not in categorical:
            what = "is a numeric column" if column in numeric else "is not among data.categorical"
            raise ValueError(
                f"validation.slices names columns of data.categorical, by whose values samples are put together: "
                f"{column!r} {what}. data.categorical = {list(categorical)}. Take it out of validation.slices, or add "
                "it to data.categorical for a new run: the model then learns from it too"
            )
    _require_once("validation.slices", slices)


def require_metrics(metrics: Sequence[str], kind: str) -> None:
    """Raise `ValueError` unless `validation.metrics` names metrics that a target of this kind may have, each once."""
    known = EXTRA_METRICS.get(kind, {})
    for name in metrics:
        if name in METRICS[kind]:
            raise ValueError(f"validation.metrics: {name} is computed in any case. Take it out")
        if name not in known:
            raise ValueError(
                f"validation.metrics: {name!r} is not known for kind = {kind!r}. Known are "
                f"{', '.join(known) or 'none'}; computed in any case: {', '.join(METRICS[kind])}"
            )
    _require_once("validation.metrics", metrics)


def require_deciding_metric(chosen: str | None, metrics: Sequence[str], kind: str) -> None:
    """Raise `ValueError` unless `validation.metric_for_best_model` is computed, and higher is better."""
    if chosen is None:
        return
    lower_is_better = {"loss", *(name for name, is_higher in EXTRA_METRICS.get(kind, {}).items() if not is_higher)}
    computed = [name for name in metrics_with(kind, metrics) if name not in lower_is_better]
    if chosen not in computed:
        why = "lower is better" if chosen in lower_is_better else "it is not computed"
        raise ValueError(
            f"validation.metric_for_best_model is {chosen!r}: {why}. It may be one of {', '.join(computed)}; "
            "validation.metrics adds further ones"
        )


def _require_once(field: str, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{field} names {', '.join(twice)} twice. Name each once")
