"""Words of a drill about its comparison: one line for each thing compared, and the verdict in sentences.

Invariant: pure, and the same on the page and in the terminal. It claims no more than was compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from storage.runs.metric_values import MetricValue
from storage.target_kinds import telling_order
from tasks.drills.comparison import Comparison, Kill, difference
from tasks.drills.plan import DrillPlan
from tasks.drills.rank_kills import RankKill, describe_rank_kills
from tasks.drills.records import TrainedRun
from tasks.reporting.changes import list_changes
from tasks.text import NOTHING, count_of, listed, metric_name, plain, score

DIGEST_CHARACTERS = 12
ONE_NOT_FINITE = "not a finite number in one of them"

Result = Literal["same", "apart", "different"]


@dataclass(frozen=True)
class Finding:
    """One thing that was compared. `apart` is not the same, but no more than fast sums promise."""

    name: str
    straight: str
    interrupted: str
    result: Result
    words: str


@dataclass(frozen=True)
class DrillVerdict:
    """The verdict in a word, in a sentence, and further remarks."""

    badge: str
    headline: str
    remarks: list[str]


def list_findings(comparison: Comparison) -> list[Finding]:
    """In the order of what follows from what: samples, weights, losses, metrics."""
    names = comparison.straight.metrics.keys() | comparison.interrupted.metrics.keys()
    return [
        _samples_finding(comparison),
        _weights_finding(comparison),
        _validation_finding(comparison),
        *(_metric_finding(comparison, name) for name in sorted(names, key=telling_order)),
    ]


def drill_verdict(
    plan: DrillPlan, comparison: Comparison, hits: Sequence[Kill], rank_kills: Sequence[RankKill] = ()
) -> DrillVerdict:
    """The verdict on the page and in the terminal."""
    return DrillVerdict(
        badge=_badge(comparison),
        headline=_headline(comparison, hits),
        remarks=[
            *_audits(comparison),
            *_distances(comparison),
            *filter(None, [describe_rank_kills(rank_kills)]),
            *_interruptions(plan, comparison.interrupted, hits),
            *_straightness(comparison.straight),
            *_changes(comparison),
        ],
    )


def ranks_of(run: TrainedRun) -> str:
    """'2, 1 and 2 ranks': of the segments, in their order."""
    sizes = [str(segment.world_size) for segment in run.segments]
    return f"{listed(sizes, most=len(sizes))} rank{'' if set(sizes) == {'1'} else 's'}"


def small(difference: float | None) -> str:
    """A difference in two digits: '0', '3.1e-07'."""
    return NOTHING if difference is None else f"{difference:.2g}"


def _badge(comparison: Comparison) -> str:
    if not comparison.holds:
        return "Different"
    is_all_same = all(finding.result == "same" for finding in list_findings(comparison))
    return "Identical" if is_all_same else "Same samples"


def _headline(comparison: Comparison, hits: Sequence[Kill]) -> str:
    killed = f"The run that was killed {count_of(len(hits), 'time')}, on {ranks_of(comparison.interrupted)},"
    if not comparison.holds:
        return f"{killed} is not the same as the run without interruptions."
    if comparison.weights_equal:
        return f"{killed} ended with the same model, bit for bit, as the run without interruptions."
    return f"{killed} used the same samples at every step as the run without interruptions."


def _audits(comparison: Comparison) -> list[str]:
    return [
        f"“holdfast audit {run.address}” lists what is wrong with its samples."
        for run in (comparison.straight, comparison.interrupted)
        if not run.audit["ok"]
    ]


def _distances(comparison: Comparison) -> list[str]:
    if comparison.weights_equal:
        return []
    distance = comparison.distance
    text = (
        f"The weights are {small(distance.relative_l2)} apart (relative L2 distance); the largest difference of one "
        f"number is {small(distance.largest_difference)}, in {plain(distance.largest_in or NOTHING)}. Validation "
        f"losses differ by at most {small(comparison.validation_loss_max_difference)}, test metrics by at most "
        f"{small(comparison.metrics_max_difference)}."
    )
    if comparison.exact:
        return [text]
    return [f"train.sum = 'fast' promises the same samples, not the same weights. {text}"]


def _interruptions(plan: DrillPlan, run: TrainedRun, hits: Sequence[Kill]) -> list[str]:
    remarks = [f"After the kills {run.lost_words} had to be trained again."] if run.steps_lost else []
    if len(hits) < len(plan.aims):
        remarks.append(f"{len(hits)} of {len(plan.aims)} kills took effect: the run ended before the others were due.")
    from_scratch = sum(segment.first_step == 0 for segment in run.segments[1:])
    if from_scratch:
        times = "once" if from_scratch == 1 else f"{from_scratch:,} times"
        remarks.append(
            f"It started again from step 0 {times}, because there was no checkpoint yet. With a lower "
            "checkpoint.every_steps more is tested."
        )
    return remarks


def _straightness(run: TrainedRun) -> list[str]:
    number = len(run.segments)
    return [f"The straight run took {number} segments: it was interrupted, too."] if number > 1 else []


def _changes(comparison: Comparison) -> list[str]:
    """What was changed while one of the two was under way: a difference may come from that and not from a kill."""
    runs = (comparison.straight, comparison.interrupted)
    return [f"{run.state.run}: {change}" for run in runs for change in list_changes(run.state.changes)]


def _samples_finding(comparison: Comparison) -> Finding:
    ledgers, runs = comparison.ledgers, (comparison.straight, comparison.interrupted)
    failed = [run.state.run for run in runs if not run.audit["ok"]]
    if comparison.samples_equal:
        words = "the same at every step"
    elif ledgers.problem is not None:
        words = ledgers.problem
    elif ledgers.num_steps:
        words = f"not the same in {count_of(ledgers.num_steps, 'step')}, first in step {ledgers.first_step:,}"
    else:
        words = f"the audit of {' and '.join(failed)} fails" if failed else "the data changed between the runs"
    result: Result = "same" if comparison.samples_equal else "different"
    straight, interrupted = (f"{run.audit['samples']:,}" for run in runs)
    return Finding("Samples", straight, interrupted, result, words)


def _weights_finding(comparison: Comparison) -> Finding:
    runs, equal = (comparison.straight, comparison.interrupted), comparison.weights_equal
    words = "the same SHA-256" if equal else f"{small(comparison.distance.relative_l2)} apart"
    straight, interrupted = (run.weights_sha256[:DIGEST_CHARACTERS] for run in runs)
    return Finding("Weights", straight, interrupted, _result(comparison, equal), words)


def _validation_finding(comparison: Comparison) -> Finding:
    losses = [run.validation_losses for run in (comparison.straight, comparison.interrupted)]
    equal = comparison.validations_equal
    if equal:
        words = f"the same, {count_of(len(losses[0]), 'time')}"
    elif losses[0].keys() != losses[1].keys():
        words = "made at different steps"
    elif comparison.validation_loss_max_difference is None:
        words = ONE_NOT_FINITE
    else:
        words = f"up to {small(comparison.validation_loss_max_difference)} apart"
    straight, interrupted = (score(found[max(found)] if found else None) for found in losses)
    return Finding("Validation loss", straight, interrupted, _result(comparison, equal), words)


def _metric_finding(comparison: Comparison, name: str) -> Finding:
    ours, theirs = (run.metrics.get(name) for run in (comparison.straight, comparison.interrupted))
    equal = ours == theirs
    words = "the same" if equal else _apart(ours, theirs)
    return Finding(f"Test {metric_name(name)}", score(ours), score(theirs), _result(comparison, equal), words)


def _apart(ours: MetricValue | None, theirs: MetricValue | None) -> str:
    if ours is None or theirs is None:
        return "missing"
    apart = difference(ours, theirs)
    return ONE_NOT_FINITE if apart is None else f"{small(abs(apart))} apart"


def _result(comparison: Comparison, equal: bool) -> Result:
    if equal:
        return "same"
    return "different" if comparison.exact else "apart"
