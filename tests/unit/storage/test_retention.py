"""Retention: what stays, what goes, in which order a budget takes it, and that the resume point is never at stake."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.runs.metric_values import MetricValue
from storage.runs.retention import RetentionPolicy, best_first, find_being_read, kept_of, retain
from storage.runs.run_state import CheckpointRecord, Holder, Lease, RunState
from storage.runs.transitions import promote


def checkpoint(step: int, fence: int = 2, num_bytes: int = 10, metric: MetricValue | None = None) -> CheckpointRecord:
    return CheckpointRecord(
        step=step, path=f"c/{step}-f{fence}", digest="0", weights_sha256="1", num_bytes=num_bytes, fence=fence,
        promoted_at=1.0, metric=metric,
    )  # fmt: skip


def state_of(kept: list[CheckpointRecord], **changes: Any) -> RunState:
    state = RunState(run="run", created_at=1.0, config={}, dataset_digest="d", dataset_sha256="s" * 64, steps_total=100)
    return state.model_copy(update={"kept": kept, "promoted": kept[0] if kept else None, **changes})


def lease_from(first_step: int, fence: int) -> Lease:
    holder = Holder(host="host", pid_scope="boot", pid=1, start_ticks=1)
    return Lease(fence=fence, holder=holder, world_size=1, planned_steps=1000, first_step=first_step, taken_at=1.0)


def kept_steps(records: list[CheckpointRecord], policy: RetentionPolicy, *being_read: str) -> list[int]:
    return [record.step for record in kept_of(retain(records, policy, being_read))]


def test_a_metric_that_is_not_finite_is_never_one_of_the_best() -> None:
    values: list[MetricValue] = ["inf", "nan", 0.2, 0.1]
    records = [checkpoint(step, metric=value) for step, value in zip((50, 40, 30, 20), values, strict=True)]
    records = [checkpoint(70), checkpoint(60), *records]
    assert kept_steps(records, RetentionPolicy(newest=2, best=3)) == [70, 60, 30, 20]


PLACES = st.tuples(st.integers(0, 60), st.integers(2, 4))
METRICS: st.SearchStrategy[MetricValue | None] = st.sampled_from((None, "nan", 0.1, 0.5, 0.5, 0.9))
POLICIES = st.builds(
    RetentionPolicy,
    newest=st.integers(2, 5),
    best=st.integers(0, 3),
    every_steps=st.none() | st.integers(1, 30),
    max_bytes=st.none() | st.integers(1, 200),
    rollback_steps=st.none() | st.integers(1, 60),
)
# Without rollbacks too: one that was to go may become the one to go back to, where it was not deleted meanwhile.
UNBOUNDED = POLICIES.map(lambda policy: RetentionPolicy(policy.newest, policy.best, policy.every_steps))


@st.composite
def checkpoints(draw: st.DrawFn) -> list[CheckpointRecord]:
    """Newest first, as in a manifest."""
    places = sorted(draw(st.lists(PLACES, unique=True, max_size=12)), reverse=True)
    return [checkpoint(*place, draw(st.integers(0, 50)), draw(METRICS)) for place in places]


@st.composite
def checkpoints_and_readers(draw: st.DrawFn) -> tuple[list[CheckpointRecord], list[str]]:
    records = draw(checkpoints())
    return records, draw(st.lists(st.sampled_from([record.path for record in records] or [""]), max_size=2))


@given(checkpoints_and_readers(), POLICIES)
def test_the_resume_point_its_fallback_the_best_one_and_what_is_being_read_always_stay(
    drawn: tuple[list[CheckpointRecord], list[str]], policy: RetentionPolicy
) -> None:
    records, being_read = drawn
    kept = kept_of(retain(records, policy, being_read))
    assert kept[:2] == records[:2]
    assert policy.best == 0 or all(record in kept for record in best_first(records)[:1])
    assert {record.path for record in records if record.path in being_read} <= {record.path for record in kept}


@given(checkpoints_and_readers(), POLICIES)
def test_the_budget_is_met_unless_only_protected_ones_are_left(
    drawn: tuple[list[CheckpointRecord], list[str]], policy: RetentionPolicy
) -> None:
    records, being_read = drawn
    kept = kept_of(retain(records, policy, being_read))
    is_met = policy.max_bytes is None or sum(record.num_bytes for record in kept) <= policy.max_bytes
    best = best_first(records)[: min(policy.best, 1)]
    assert is_met or {record.path for record in kept} <= {r.path for r in [*records[:2], *best]} | set(being_read)


@given(checkpoints_and_readers(), POLICIES, st.randoms())
def test_the_answer_depends_on_no_order_and_is_final(
    drawn: tuple[list[CheckpointRecord], list[str]], policy: RetentionPolicy, random: Any
) -> None:
    records, being_read = drawn
    decisions = retain(records, policy, being_read)
    assert [decision.record for decision in decisions] == records
    assert retain(random.sample(records, len(records)), policy, being_read) == decisions
    assert kept_of(retain(kept_of(decisions), policy, being_read)) == kept_of(decisions)
    assert all(decision.reason for decision in decisions)


@given(checkpoints(), METRICS, UNBOUNDED)
def test_a_newer_checkpoint_never_saves_one_that_was_to_go(
    records: list[CheckpointRecord], metric: float | None, policy: RetentionPolicy
) -> None:
    newer = checkpoint(61, metric=metric)
    before, after = (kept_of(retain(given, policy)) for given in (records, [newer, *records]))
    assert set(map(id, after)) <= {id(newer), *map(id, before)}


@given(st.lists(st.tuples(PLACES, st.integers(0, 50), METRICS)), POLICIES)
def test_what_promotions_dropped_never_comes_back_and_the_resume_point_is_the_newest(
    saves: list[Any], policy: RetentionPolicy
) -> None:
    state, gone = state_of([]), set[str]()
    for (step, _), num_bytes, metric in sorted(saves, key=lambda save: save[0]):
        if state.promoted is not None and step <= state.promoted.step:
            continue
        before, new = state.kept, checkpoint(step, 2, num_bytes, metric)
        state = promote(new, policy)(state.model_copy(update={"lease": lease_from(0, 2)}), 3)
        assert state.promoted == state.kept[0] == new
        assert state.kept[1:2] == before[:1]  # the fallback is what was the resume point
        assert not gone & {record.path for record in state.kept}
        gone |= {record.path for record in before if record not in state.kept}


def test_the_newest_the_best_and_the_milestones_stay_each_with_its_reason() -> None:
    metrics = {10: 0.8, 20: 0.7, 30: 0.9, 40: 0.9, 50: None, 60: None, 70: 0.6}
    records = [checkpoint(step, metric=metric) for step, metric in metrics.items()]
    decisions = retain(records, RetentionPolicy(newest=2, best=2, every_steps=25))
    assert {decision.record.step: decision.reason for decision in decisions if decision.is_kept} == {
        70: "the resume point, one of the newest 2",
        60: "the resume point's fallback, one of the newest 2",
        50: "the milestone of step 50",
        40: "one of the best 2",
        30: "the best one, the milestone of step 25",
    }


def test_of_equally_good_ones_the_older_stays() -> None:
    records = [checkpoint(step, metric=0.5) for step in (10, 20, 30, 40)]
    assert kept_steps(records, RetentionPolicy(newest=2, best=1)) == [40, 30, 10]


def test_a_budget_takes_milestones_first_the_oldest_ahead_then_the_newest_then_the_best() -> None:
    metrics = {10: None, 20: None, 30: 0.9, 40: None, 50: None, 60: None}
    records = [checkpoint(step, metric=metric) for step, metric in metrics.items()]
    order = [[60, 50, 30], [60, 50, 30], [60, 50, 40, 30], [60, 50, 40, 30, 20], [60, 50, 40, 30, 20, 10]]
    for num_kept, expected in enumerate(order, start=2):
        policy = RetentionPolicy(newest=3, best=1, every_steps=10, max_bytes=10 * num_kept)
        assert kept_steps(records, policy) == expected
    assert kept_steps(records, RetentionPolicy(newest=3, max_bytes=1)) == [60, 50]


@pytest.mark.parametrize(("every_steps", "rollback_steps"), [(10, 100), (10, 25), (10, 10), (7, 1), (2000, 100)])
def test_there_is_always_a_checkpoint_to_go_back_to_and_it_is_not_much_older_than_it_must_be(
    every_steps: int, rollback_steps: int
) -> None:
    policy = RetentionPolicy(newest=2, rollback_steps=rollback_steps)
    kept: list[CheckpointRecord] = []
    for step in range(every_steps, 60 * every_steps, every_steps):
        kept = kept_of(retain([checkpoint(step), *kept], policy))
        earliest = step + 1 - rollback_steps  # where the run goes back to if its next step diverges
        candidates = [record.step for record in kept if record.step <= earliest]
        oldest = 2 * every_steps + rollback_steps
        assert earliest < every_steps or earliest - candidates[0] < oldest
        assert len(kept) <= 4


def test_what_a_rollback_needs_stays_with_its_reason() -> None:
    records = [checkpoint(step) for step in (10, 20, 30, 40, 50, 60)]
    decisions = retain(records, RetentionPolicy(newest=2, rollback_steps=31))
    assert {decision.record.step: decision.reason for decision in decisions if decision.is_kept} == {
        60: "the resume point, one of the newest 2",
        50: "the resume point's fallback, one of the newest 2",
        40: "the next one to go back to if the loss diverges",
        30: "to go back to if the loss diverges",
    }
    assert kept_steps(records, RetentionPolicy(newest=2, rollback_steps=31, max_bytes=30)) == [60, 50, 30]


def test_a_budget_says_what_it_took() -> None:
    decisions = retain([checkpoint(step) for step in (10, 20, 30)], RetentionPolicy(newest=3, max_bytes=20))
    assert decisions[-1].reason == "does not fit into checkpoint.keep_bytes = 20, although it is one of the newest 3"


def test_what_the_running_segment_began_with_is_being_read() -> None:
    kept = [checkpoint(30, 5), checkpoint(20, 5), checkpoint(10, 3), checkpoint(10, 2)]
    assert find_being_read(state_of(kept)) == set()
    assert find_being_read(state_of(kept, lease=lease_from(10, 5))) == {"c/10-f3"}
    assert find_being_read(state_of(kept, lease=lease_from(0, 5))) == set()
    assert find_being_read(state_of([checkpoint(10, 5), *kept[2:]], lease=lease_from(10, 5))) == {"c/10-f3"}
    promoted = promote(checkpoint(40, 5), RetentionPolicy(newest=2))(state_of(kept, lease=lease_from(10, 5)), 9)
    assert [(record.step, record.fence) for record in promoted.kept] == [(40, 5), (30, 5), (10, 3)]
