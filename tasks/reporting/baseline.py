"""Words about the linear model beside a run: what it is, and where it is better than the network, what that means.

Invariant: pure functions of the run's state and of the record of the linear model; without that they say nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

from storage.runs.metric_values import MetricValue
from storage.runs.run_state import RunState
from storage.target_kinds import METRICS
from tasks.console.tables import Cell, Kind, Table
from tasks.reporting.best import headline_name
from tasks.text import count_of, metric_name, score

WHAT_IT_IS = (
    "It is a logistic regression on the tokens and the pairs of neighbouring tokens of a text, weighted by TF-IDF, "
    "without metadata columns."
)


def warn_of_baseline(state: RunState, found: Mapping[str, Any] | None) -> str | None:
    """That the linear model is better than the network, what that means and what to do; None where it is not."""
    tested = state.headline
    if found is None or found["metrics"] is None or tested is None:
        return None
    name = _deciding(state, tested.metrics, found["metrics"])
    if name is None or score(tested.metrics[name]) == score(found["metrics"][name]):
        return None
    ours, theirs = float(tested.metrics[name]), float(found["metrics"][name])
    if theirs <= ours:
        return None
    number = found["num_test_rows"]
    sentences = [
        f"A linear model on counts of tokens is better than this network: {metric_name(name)} {score(theirs)} against "
        f"{score(ours)} on the test split, {count_of(number, 'sample')}.",
        "So the network has not learnt what single tokens and neighbouring pairs of them tell.",
        _advice(state),
    ]
    # Two standard errors of a share of so many samples are at most this.
    if theirs - ours < (chance := 1 / math.sqrt(number)):
        sentences.insert(1, f"On so many samples a difference of less than {chance:.3f} may be chance.")
    return " ".join(sentences)


def describe_baseline(found: Mapping[str, Any] | None) -> str:
    """What the linear model was trained on, or why there is none; '' where nothing is known of one."""
    if found is None:
        return ""
    if found["metrics"] is None:
        return f"There is no linear model to compare with: {found['reason'].rstrip('.')}."
    used, rows = found["num_rows"], found["num_train_rows"]
    part = f"all {rows:,} rows" if used == rows else f"the first {used:,} of {rows:,} rows"
    return (
        f"{WHAT_IT_IS} It was trained on {part} of the training split, whose order is random, and knows "
        f"{found['num_terms']:,} of the tokens and pairs. "
        "The same data give the same figures."
    )


def baseline_table(state: RunState, found: Mapping[str, Any] | None) -> Table | None:
    """The metrics that both have, the most informative first; None where there is nothing to compare."""
    tested = state.headline
    if found is None or found["metrics"] is None or tested is None:
        return None
    columns: list[tuple[str, Kind]] = [("On the test split", "text"), ("This model", "number")]
    columns.append(("Linear model", "number"))
    names = [name for name in _order(state) if name in found["metrics"] and name in tested.metrics]
    rows = [
        [Cell(metric_name(name)), Cell(score(tested.metrics[name])), Cell(score(found["metrics"][name]))]
        for name in names
    ]
    return Table(columns, rows) if rows else None


def _deciding(state: RunState, ours: Mapping[str, MetricValue], theirs: Mapping[str, MetricValue]) -> str | None:
    """The metric by which the run is judged; where one of both has it not, the next informative one."""
    both = (name for name in _order(state) if name in ours and name in theirs)
    return next((name for name in both if not isinstance(ours[name], str)), None)


def _order(state: RunState) -> list[str]:
    """Metrics of a run, without the loss."""
    data = state.config.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    usual = METRICS.get(str(kind), METRICS["multiclass"])[:-1]
    return list(dict.fromkeys([headline_name(state), *usual]))


def _advice(state: RunState) -> str:
    model = state.config.get("model")
    is_pretrained = isinstance(model, dict) and model.get("kind") == "pretrained"
    more = "" if is_pretrained else ", or begin with a pretrained encoder (model.kind = 'pretrained')"
    return (
        "Train for longer (train.epochs or train.steps), try another train.learning_rate" + more + ". If the network "
        "stays behind, use a linear model: it is smaller and faster."
    )
