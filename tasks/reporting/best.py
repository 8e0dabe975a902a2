"""Words about the best model of a run and the last one, where they are not the same.

Invariant: made of the manifest alone, and of what its checkpoints showed in validation.
"""

from storage.runs.retention import find_best
from storage.runs.run_state import RunState
from storage.target_kinds import headline_metric
from tasks.text import metric_name, score


def headline_name(state: RunState) -> str:
    """The metric by which the run is judged, as the configuration in its manifest has it."""
    data = state.config.get("data")
    return headline_metric(data.get("kind") if isinstance(data, dict) else None, chosen_metric(state))


def chosen_metric(state: RunState) -> str | None:
    """What its configuration says of it, or None: then it follows from the kind of target."""
    validation = state.config.get("validation")
    return validation.get("metric_for_best_model") if isinstance(validation, dict) else None


def describe_best(state: RunState) -> str | None:
    """'best at step 400 (macro-F1 0.8512), last 0.8150', in validation; None where the last one is the best."""
    best, last = find_best(state), state.promoted
    if best is None or last is None or best.path == last.path:
        return None
    shown = f"best at step {best.step:,} ({metric_name(headline_name(state))} {score(best.metric)} in validation)"
    return f"{shown}, last {score(last.metric)}" if last.metric is not None else shown


def describe_overfitting(state: RunState) -> str | None:
    """What it means that a run came to its end with a worse model than it had, and what to set; None if it did not."""
    best, last = find_best(state), state.promoted
    if not state.is_trained or best is None or last is None:
        return None
    values = best.metric, last.metric
    if not all(isinstance(value, float) for value in values) or not float(values[0] or 0) > float(values[1] or 0):
        return None
    found = (
        f"From step {best.step:,} on no validation gave a better {metric_name(headline_name(state))}. If the "
        "validation loss rises from there on, the model overfits: see the two curves in the report."
    )
    train = state.config.get("train")
    has_patience = isinstance(train, dict) and train.get("patience") is not None
    if has_patience or state.ended_early:
        return f"{found} `holdfast export` takes the best one."
    return (
        f"{found} `holdfast export` takes the best one. With train.patience, for instance 3, training ends there by "
        "itself."
    )
