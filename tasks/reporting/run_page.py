"""The report: one HTML page about a run, for the person who comes back to it days later.

Invariant: a pure function of the records, and self-contained: no script, nothing loaded from anywhere, and every
string from outside escaped. The page claims no more than the records show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from storage.datasets import SPLITS, DatasetManifest
from storage.runs.code_version import NAME
from storage.runs.metric_values import describe_not_finite, find_not_finite
from storage.runs.retention import find_best
from storage.runs.run_state import RunState
from storage.target_kinds import METRICS, headline_metric
from tasks.config.by_rows import describe_by_rows
from tasks.console.tables import Table
from tasks.reporting.baseline import baseline_table, describe_baseline, warn_of_baseline
from tasks.reporting.best import chosen_metric, describe_best, describe_overfitting
from tasks.reporting.calibration_charts import draw_reliability, draw_thresholds
from tasks.reporting.calibration_tables import describe_calibration, thresholds_table
from tasks.reporting.changes import describe_other_holdfast, list_changes
from tasks.reporting.charts import draw_classes, draw_confusion, draw_phases, draw_roc, draw_time
from tasks.reporting.curves import draw_training, draw_validation
from tasks.reporting.goodput import describe_clock, sum_up_time, with_possible_length
from tasks.reporting.render import render_page
from tasks.reporting.rollbacks import count_skipped, name_reasons
from tasks.reporting.slices import EXPLANATION, slices_tables
from tasks.reporting.tables import (
    MAX_CAUSE_CHARACTERS,
    checkpoints_table,
    classes_table,
    columns_table,
    confusions_table,
    describe_classes,
    quarantined_table,
    rollbacks_table,
    segments_table,
    splits_table,
)
from tasks.reporting.tiles import Tile
from tasks.reporting.time_line import draw_time_line
from tasks.reporting.views import count_survived
from tasks.text import (
    NOTHING,
    at_least,
    count_of,
    duration,
    interruptions_of,
    listing,
    metric_name,
    moment,
    outcome_counts,
    outcome_words,
    plain,
    score,
    share,
    shortened,
)

TEMPLATE = "reporting/run_page.html.jinja"
MAX_CLASSES_BESIDE_A_TABLE = 16


@dataclass(frozen=True)
class Verdict:
    """How the run stands, in one sentence, and further remarks."""

    standing: Literal["complete", "running", "stopped"]
    badge: str
    headline: str
    remarks: list[str]


def render_report(
    state: RunState,
    history: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    dataset: DatasetManifest,
    calibration: Mapping[str, Any] | None = None,
    data_remarks: Sequence[str] = (),
    baseline: Mapping[str, Any] | None = None,
    deaths: str | None = None,
    now: float | None = None,
) -> str:
    """The page as HTML. All but `state` and `dataset` may be empty: a run that has only begun has a report too.

    `deaths` is what is known of ranks of the segment under way; by the Unix time `now` clocks that are ahead are seen.
    """
    time, clock = sum_up_time(state, now), describe_clock(state, now)
    possible = with_possible_length(state, now)
    return render_page(
        TEMPLATE,
        state=state,
        verdict=run_verdict(state, deaths, now),
        beaten=warn_of_baseline(state, baseline),
        tiles=_tiles(state, evaluation, dataset, now),
        facts=_facts(state, dataset),
        stale=_stale_evaluation(state, evaluation),
        progress=_progress(state),
        wide=len(dataset.target.classes) > MAX_CLASSES_BESIDE_A_TABLE,
        kind=dataset.target.kind,
        has_roc="auc" in METRICS[dataset.target.kind],
        target=plain(dataset.target.column),
        training=draw_training(history, state.segments),
        validation=draw_validation(history),
        validated=bool(history.get("validation")),
        confusion=draw_confusion(evaluation) if evaluation else None,
        roc=draw_roc(evaluation) if evaluation else None,
        reliability=draw_reliability(calibration),
        thresholds=draw_thresholds(calibration),
        calibrated=describe_calibration(calibration),
        time=draw_time(time) if time else None,
        time_line=draw_time_line(state) if clock is None else None,
        phases=draw_phases(possible),
        classes=draw_classes(dataset.target.classes, dataset.target.class_counts, dataset.splits["train"].num_rows),
        evaluated=f"{plain(evaluation['split'])} split, {count_of(evaluation['num_samples'], 'sample')}, "
        f"weights of step {evaluation['step']:,}"
        if evaluation
        else "",
        tables=_tables(state, evaluation, dataset) | {"thresholds": thresholds_table(calibration)},
        about_classes=describe_classes(evaluation),
        baseline=baseline_table(state, baseline),
        about_baseline=describe_baseline(baseline),
        slices=slices_tables(evaluation),
        about_slices=EXPLANATION,
        data_remarks=[plain(remark) for remark in data_remarks],
        configuration="\n".join([*listing(state.config), *_by_rows(state)]),
        versions=", ".join(f"{plain(name)} {plain(version)}" for name, version in sorted(dataset.versions.items())),
    )


def _by_rows(state: RunState) -> list[str]:
    return [f"What followed from {describe_by_rows(state.by_rows)}"] if state.by_rows else []


def run_verdict(state: RunState, deaths: str | None = None, now: float | None = None) -> Verdict:
    """The verdict on a run: complete, running (a process holds its lease), or stopped on the way."""
    step, interruptions = _step(state), interruptions_of(state.segments)
    done = f"{step:,} of {count_of(state.steps_total, 'step')}"
    cost, again = _cost(state), " that was done again" if _lost(state) else ""
    if step >= state.end_step:
        early = f", ended early ({state.segments[-1].cause})," if state.ended_early else ""
        headline = f"Complete: {done}{early} in {count_of(len(state.segments), 'segment')}"
        survived = count_survived(state.segments)
        headline += f"; {cost}{again}." if interruptions else "." if survived else "; nothing interrupted it."
        remarks = [*_survived(survived), *_best(state), *_promise(state), *_mishaps(state, now)]
        return Verdict("complete", "Complete", headline, remarks)
    safe = f"{done} ({share(step / state.steps_total)}) are saved in a promoted checkpoint"
    if state.lease is not None:
        since = moment(state.lease.taken_at)
        remark = f"A segment has been training from step {state.lease.first_step:,} on since {since}."
        so_far = [remark, *filter(None, [deaths]), *_so_far(cost), *_mishaps(state, now)]
        return Verdict("running", "Training", f"Not complete yet: {safe}.", so_far)
    remarks = [*_last_words(state), *_so_far(cost), *_mishaps(state, now)]
    remarks.append(_way_on(state))
    return Verdict("stopped", "Not complete", f"Not complete: {safe}.", remarks)


def is_unbroken(state: RunState) -> bool:
    """Whether the segments lead from step 0 to the promoted checkpoint with no step left out."""
    segments = state.segments
    if not segments or state.promoted is None or segments[0].first_step != 0:
        return False
    if any(segment.outcome == "diverged" for segment in segments) or any(r.asked_by for r in state.rollbacks):
        return False
    joined = all(later.first_step <= earlier.last_step for earlier, later in pairwise(segments))
    return joined and segments[-1].last_step >= state.promoted.step


def _step(state: RunState) -> int:
    return state.promoted.step if state.promoted else 0


def _lost(state: RunState) -> int:
    """Steps lost with segments that were interrupted; what a damaged checkpoint took is shown beside it."""
    return sum(segment.steps_lost for segment in state.segments)


def _cost(state: RunState) -> str:
    """'3 interruptions cost 37 steps of work', or '' when there were none."""
    interruptions, lost = interruptions_of(state.segments), _lost(state)
    if not interruptions:
        return ""
    is_least = state.steps_lost_is_least
    price = f"{at_least(count_of(lost, 'step'), is_least)} of work" if lost or is_least else "no step"
    return f"{count_of(len(interruptions), 'interruption')} cost {price}"


def _survived(number: int) -> list[str]:
    if not number:
        return []
    return [f"{count_of(number, 'rank')} died, and the others trained on from the same step: no step was lost by that."]


def _best(state: RunState) -> list[str]:
    words = describe_best(state)
    return [] if words is None else [f"The {words}.", *filter(None, [describe_overfitting(state)])]


def _promise(state: RunState) -> list[str]:
    """That it is the model of an uninterrupted run, unless a change makes another one: then `_mishaps` has it."""
    disturbed = interruptions_of(state.segments) or count_survived(state.segments)
    if state.changes or not disturbed or not is_unbroken(state):
        return []
    return [
        "The model is the one that an uninterrupted run makes on the same kind of hardware and software: no step was "
        "skipped, and steps that were trained twice count once. Two runs can be compared by the SHA-256 "
        "of their weights."
    ]


def _rolled_back(state: RunState) -> list[str]:
    times, skipped = count_of(len(state.rollbacks), "time"), count_of(count_skipped(state.rollbacks), "sample")
    reasons = name_reasons([record.asked_by for record in state.rollbacks])
    return [f"{reasons} {times}; {skipped} of the order were left out. See below."] if state.rollbacks else []


def _mishaps(state: RunState, now: float | None) -> list[str]:
    changed = [*list_changes(state.changes), *filter(None, [describe_other_holdfast(state)])]
    found = [*changed, *_rolled_back(state), *_rejected(state), *_not_finite(state)]
    return [*found, *_damage(state), *filter(None, [describe_clock(state, now)])]


def _rejected(state: RunState) -> list[str]:
    return [
        f"The checkpoint of step {record.checkpoint.step:,} did not pass the quality gate: {plain(record.reason)}."
        for record in state.rejected[-1:]
    ]


def _not_finite(state: RunState) -> list[str]:
    found = state.promoted.not_finite if state.promoted else None
    remarks = []
    if found is not None:
        remarks.append(
            f"The last validation, at step {found.step:,}, gave values that are not finite numbers: "
            f"{describe_not_finite(found.metrics)}. They never count as the best."
        )
    if tested := find_not_finite(state.metrics or {}):
        remarks.append(f"The test gave values that are not finite numbers: {describe_not_finite(tested)}.")
    return remarks


def _damage(state: RunState) -> list[str]:
    number = len(state.quarantined)
    return [f"{count_of(number, 'checkpoint')} quarantined or passed over; see below."] if number else []


def _so_far(cost: str) -> list[str]:
    return [f"So far {cost}."] if cost else []


def _last_words(state: RunState) -> list[str]:
    if not state.segments:
        return ["No segment has ended yet."]
    last = state.segments[-1]
    cause = f" ({shortened(last.cause, MAX_CAUSE_CHARACTERS).rstrip('.')})" if last.cause else ""
    return [f"The last segment {outcome_words(last)} at step {last.last_step:,}{cause}."]


def _way_on(state: RunState) -> str:
    if state.is_rejected:
        return (
            "To have the model as it is, change checkpoint.gate and start “holdfast run” again: nothing is trained "
            "again for it. To train on, give more train.steps."
        )
    if state.unanswered_divergence is not None:
        return "“holdfast run” rolls the run back if a rollback is left; if none is left, it says what can be changed."
    return "To go on from there, start “holdfast run” with the same configuration."


def _tiles(
    state: RunState, evaluation: Mapping[str, Any] | None, dataset: DatasetManifest, now: float | None
) -> list[Tile]:
    tested = state.headline
    metrics = dict(evaluation["metrics"] if evaluation else tested.metrics if tested else {})
    step = evaluation["step"] if evaluation else tested.step if tested else None
    best = find_best(state)
    which = "best, at step" if best is not None and best.step == step and best != state.promoted else "at step"
    note = f"{which} {step:,}" if metrics and step is not None else "not evaluated yet"
    kind = dataset.target.kind
    names = [*list(dict.fromkeys([headline_metric(kind, chosen_metric(state)), *METRICS[kind]]))[:2], "loss"]
    tiles = [Tile(f"Test {metric_name(name)}", score(metrics.get(name)), note) for name in names]
    interruptions = interruptions_of(state.segments)
    lost, is_least = state.steps_lost, state.steps_lost_is_least
    seconds = sum(segment.seconds for segment in with_possible_length(state, now))
    return [
        *tiles,
        Tile("Steps", f"{_step(state):,}", f"of {state.steps_total:,}{', ended early' if state.ended_early else ''}"),
        Tile("Segments", f"{len(state.segments):,}", outcome_counts(interruptions) or "none interrupted"),
        Tile(
            "Steps lost",
            at_least(f"{lost:,}", is_least),
            "had to be trained again" if lost or is_least else "none had to be trained again",
        ),
        Tile("Time in segments", duration(seconds) if state.segments else NOTHING, _on_the_clock(state, now)),
        _goodput_tile(state, now),
    ]


def _goodput_tile(state: RunState, now: float | None) -> Tile:
    time = sum_up_time(state, now)
    if time is None:
        return Tile("Goodput", NOTHING, _why_no_time(state, now) or "no time was recorded")
    return Tile("Goodput", share(time.goodput), "of all time went into steps that count")


def _why_no_time(state: RunState, now: float | None) -> str | None:
    if not state.segments:
        return "no segment has ended"
    return None if describe_clock(state, now) is None else "a machine's clock was wrong"


def _on_the_clock(state: RunState, now: float | None) -> str:
    if (why_not := _why_no_time(state, now)) is not None:
        return why_not
    begin = min(segment.started_at for segment in state.segments)
    end = max(segment.started_at + segment.seconds for segment in state.segments)
    return f"{duration(end - begin)} from first to last"


def _facts(state: RunState, dataset: DatasetManifest) -> list[tuple[str, str]]:
    """Hashes to copy, a click selects one whole; and which Holdfast trained last."""
    promoted = state.promoted
    facts = [("Weights SHA-256", promoted.weights_sha256), ("Checkpoint digest", promoted.digest)] if promoted else []
    trained_by = [segment.holdfast.describe() for segment in state.segments[-1:] if segment.holdfast is not None]
    return [*facts, ("Data set digest", dataset.digest), *((NAME, words) for words in trained_by)]


def _progress(state: RunState) -> float:
    return round(100 * min(1.0, _step(state) / max(1, state.end_step)), 2)


def _stale_evaluation(state: RunState, evaluation: Mapping[str, Any] | None) -> str:
    """A warning where the test figures are neither the newest checkpoint's nor the best one's, or ''."""
    shown = [record for record in (state.promoted, find_best(state)) if record is not None]
    if evaluation is None or any(evaluation["weights_sha256"] == record.weights_sha256 for record in shown):
        return ""
    newest = f"step {state.promoted.step:,}" if state.promoted else "none"
    return f"The test figures belong to the weights of step {evaluation['step']:,}; the resume point is {newest}."


def _tables(state: RunState, evaluation: Mapping[str, Any] | None, dataset: DatasetManifest) -> dict[str, Table]:
    splits: Sequence[str] = [name for name in SPLITS if name in dataset.splits]
    return {
        "segments": segments_table(state.segments),
        "checkpoints": checkpoints_table(state.kept),
        "rollbacks": rollbacks_table(state.rollbacks),
        "quarantined": quarantined_table(state.quarantined),
        "classes": classes_table(evaluation),
        "confusions": confusions_table(evaluation),
        "splits": splits_table({name: dataset.splits[name] for name in splits}),
        "columns": columns_table(dataset.numeric, dataset.categorical),
    }
