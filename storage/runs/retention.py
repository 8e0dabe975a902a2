"""Which of a run's promoted checkpoints stay, and why: a pure function of the records, the policy and what is read.

What claims a checkpoint, in the order in which a byte budget takes it away last:

    1. protected     the resume point, its fallback (the next older one), the best one where there is to be one, and
                     what is being read: stay in any case
    2. rollback      the newest one that is old enough to go back to should the very next step diverge; behind it the
                     oldest of the younger ones, which replaces it once it is old enough
    3. best          the best N by the headline metric, better ones first; of equal ones the older; never one whose
                     metric is not a finite number
    4. newest        the newest K, newer ones first
    5. milestones    in every interval of N steps the first checkpoint at or after its beginning, newer ones first

What nothing claims goes. A budget then cuts this order where the sum of the bytes would exceed it, and all behind the
cut goes too. Invariant: the answer follows from the records alone, in whatever order they come; asked again about what
it kept, it keeps all of it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from storage.runs.run_state import CheckpointRecord, RunState

PROTECTED, ROLLBACK, BEST, NEWEST, MILESTONE = range(5)


@dataclass(frozen=True)
class RetentionPolicy:
    """How many checkpoints stay. `every_steps` counts steps, `max_bytes` the files of all that stay.

    `rollback_steps` is how far a run that diverges goes back; None if it never does.
    """

    newest: int
    best: int = 0
    every_steps: int | None = None
    max_bytes: int | None = None
    rollback_steps: int | None = None


@dataclass(frozen=True)
class RetentionDecision:
    """What becomes of one checkpoint, and why, in words."""

    record: CheckpointRecord
    is_kept: bool
    reason: str


@dataclass(frozen=True)
class _Claim:
    """Why a checkpoint is kept, and the priority of that: the kind of claim, and the rank within the kind."""

    priority: tuple[int, int]
    words: str


def find_being_read(state: RunState) -> frozenset[str]:
    """Folders of the checkpoints that may be being read, which no retention may delete.

    This is the checkpoint that the running segment began with: its ranks restore from it. Who reads another one leaves
    a note, and these are checked before files are deleted: `storage.checkpoints.reading`. Others need no entry here.
    An evaluation and a report read the resume point, and a process that hashes the resume point before a resume goes on
    to its fallback: both stay in any case, and a checkpoint is the one or the other until two more were promoted.
    `verify` reads everything, holds nothing back, and leaves out what was dropped while it read.
    """
    lease = state.lease
    if lease is None:
        return frozenset()
    began_with = [r.path for r in state.kept if r.step == lease.first_step and r.fence < lease.fence]
    return frozenset(began_with[:1])  # of two checkpoints of one step the newer one was the resume point


def retain(
    records: Sequence[CheckpointRecord], policy: RetentionPolicy, being_read: Collection[str] = ()
) -> list[RetentionDecision]:
    """What becomes of each of a run's promoted checkpoints, newest first."""
    newest_first = sorted(records, key=_age, reverse=True)
    claims = _protected(newest_first, policy, being_read)
    for rule in (_rollback, _best, _newest, _milestones):
        for path, claim in rule(newest_first, policy).items():
            claims.setdefault(path, []).append(claim)
    within_budget = _fit(newest_first, claims, policy.max_bytes)
    return [_decide(record, policy, claims.get(record.path, []), within_budget) for record in newest_first]


def kept_of(decisions: Sequence[RetentionDecision]) -> list[CheckpointRecord]:
    """What stays, in the same order."""
    return [decision.record for decision in decisions if decision.is_kept]


def best_first(records: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
    """Those with a finite metric, the best one first."""
    # Of equal ones the older: so a new checkpoint never replaces one that is just as good.
    validated = [(-r.metric, _age(r), r) for r in records if not isinstance(r.metric, str | None)]
    return [record for _metric, _age, record in sorted(validated, key=lambda entry: entry[:2])]


def find_best(state: RunState) -> CheckpointRecord | None:
    """The best checkpoint that a run keeps: what `export` takes, and what a person is shown."""
    return next(iter(best_first(state.kept)), None)


def _age(record: CheckpointRecord) -> tuple[int, int]:
    return record.step, record.fence


def _protected(
    newest_first: Sequence[CheckpointRecord], policy: RetentionPolicy, being_read: Collection[str]
) -> dict[str, list[_Claim]]:
    words = {record.path: ["being read"] for record in newest_first if record.path in being_read}
    for record, role in zip(newest_first, ("the resume point", "the resume point's fallback"), strict=False):
        words[record.path] = [role, *words.get(record.path, [])]
    for record in best_first(newest_first)[: min(policy.best, 1)]:
        words[record.path] = [*words.get(record.path, []), "the best one"]
    return {path: [_Claim((PROTECTED, 0), text) for text in texts] for path, texts in words.items()}


def _rollback(newest_first: Sequence[CheckpointRecord], policy: RetentionPolicy) -> dict[str, _Claim]:
    """Two, however many steps lie between checkpoints: with one alone, none would ever grow old enough to follow it."""
    if policy.rollback_steps is None or not newest_first:
        return {}
    latest = newest_first[0].step + 1 - policy.rollback_steps
    old_enough = [record for record in newest_first if record.step <= latest][:1]
    growing_old = [record for record in newest_first[1:] if record.step > latest][-1:]
    claims = {record.path: _Claim((ROLLBACK, 0), "to go back to if the loss diverges") for record in old_enough}
    return claims | {
        record.path: _Claim((ROLLBACK, 1), "the next one to go back to if the loss diverges") for record in growing_old
    }


def _best(newest_first: Sequence[CheckpointRecord], policy: RetentionPolicy) -> dict[str, _Claim]:
    others = best_first(newest_first)[1 : policy.best]
    words = f"one of the best {policy.best}"
    return {record.path: _Claim((BEST, index), words) for index, record in enumerate(others)}


def _newest(newest_first: Sequence[CheckpointRecord], policy: RetentionPolicy) -> dict[str, _Claim]:
    words = f"one of the newest {policy.newest}"
    return {record.path: _Claim((NEWEST, index), words) for index, record in enumerate(newest_first[: policy.newest])}


def _milestones(newest_first: Sequence[CheckpointRecord], policy: RetentionPolicy) -> dict[str, _Claim]:
    """The first checkpoint at or after the beginning of each interval: saves are not always on the cadence."""
    if policy.every_steps is None:
        return {}
    intervals = {record.step // policy.every_steps: (index, record) for index, record in enumerate(newest_first)}
    return {
        record.path: _Claim((MILESTONE, index), f"the milestone of step {interval * policy.every_steps:,}")
        for interval, (index, record) in intervals.items()
        if interval > 0
    }


def _fit(
    newest_first: Sequence[CheckpointRecord], claims: dict[str, list[_Claim]], max_bytes: int | None
) -> frozenset[str]:
    """Folders of what stays within the budget: the protected ones, and the longest beginning of the order that fits."""
    strongest = {path: min(claim.priority for claim in found) for path, found in claims.items()}
    ordered = sorted((record for record in newest_first if record.path in claims), key=lambda r: strongest[r.path])
    sums = accumulate(record.num_bytes for record in ordered)
    return frozenset(
        record.path
        for record, num_bytes in zip(ordered, sums, strict=True)
        if max_bytes is None or num_bytes <= max_bytes or strongest[record.path][0] == PROTECTED
    )


def _decide(
    record: CheckpointRecord, policy: RetentionPolicy, claims: list[_Claim], within_budget: frozenset[str]
) -> RetentionDecision:
    words = ", ".join(claim.words for claim in claims)
    if record.path in within_budget:
        return RetentionDecision(record, True, words)
    if claims:
        return RetentionDecision(
            record, False, f"does not fit into checkpoint.keep_bytes = {policy.max_bytes:,}, although it is {words}"
        )
    return RetentionDecision(record, False, "not among the newest, the best or the milestones")
