"""A tracker has each step of a run once, wherever whoever sends is killed and whichever answer is lost."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import get_args

import pytest

from tasks.tracking import sending
from tasks.tracking.points import Point
from tasks.tracking.sending import Sender
from tasks.tracking.tracker import TrackerError
from tests.helpers.fake_tracker import FakeTracker, How, Kept, Killed
from tests.helpers.tracked_story import KEYS, RESUME_STEP, SECOND, STORY, points_up_to, wanted

# Calls that the whole story takes, at the least.
LEAST_CALLS = 20


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is something between two of them."""
    monkeypatch.setattr(sending, "MOST_POINTS", 3)
    monkeypatch.setattr(sending, "MOST_NAMES", 1)


def require_whole(tracker: FakeTracker) -> Kept:
    """One live run with each step of the story once, and the values that it ended with."""
    (live,) = tracker.live
    expected = points_up_to(40, SECOND, RESUME_STEP)
    for key in KEYS:
        assert live.curve(key) == [(point.step, point.value) for point in expected if point.key == key]
    assert live.run.parameters == {"train.steps": "100", "train.seed": "0"}
    assert (live.run.status, live.run.tags["holdfast.rollbacks"]) == ("FINISHED", "1")
    assert live.files == {"model.json": b"{}"}
    return live


def tell(tracker: FakeTracker) -> None:
    """The whole story, as one process does."""
    sender = Sender(tracker)
    for chapter in STORY:
        sender.send(chapter)


def test_a_run_that_was_rolled_back_is_replaced_and_the_old_one_is_marked_and_deleted() -> None:
    tracker = FakeTracker()
    tell(tracker)
    live = require_whole(tracker)
    (old,) = [kept for kept in tracker.kept.values() if kept.is_deleted]
    assert old.run.tags["holdfast.replaced_by"] == live.run.run_id and "holdfast.rolled_back" in old.run.tags
    assert max(step for step, _ in old.curve("loss")) == 30  # what it showed is still there for who looks


@pytest.mark.parametrize("how", get_args(How))
def test_cut_off_at_any_call_the_next_process_makes_it_whole(how: How) -> None:
    """Each chapter is told by a process of its own, as a segment is; the one that is cut off by two."""
    for call in count():
        tracker, is_cut_off = FakeTracker(), False
        tracker.cut_off(call, how)
        for chapter in STORY:
            try:
                Sender(tracker).send(chapter)
            except (Killed, TrackerError):
                is_cut_off = True
                Sender(tracker).send(chapter)
        require_whole(tracker)
        if not is_cut_off:
            break
    assert call > LEAST_CALLS


@pytest.mark.parametrize("how", ["no answer before", "no answer after"])
def test_what_one_process_could_not_send_it_sends_the_next_time(how: How) -> None:
    for call in count():
        tracker, is_cut_off = FakeTracker(), False
        tracker.cut_off(call, how)
        sender = Sender(tracker)
        for chapter in (*STORY, STORY[-1]):
            try:
                sender.send(chapter)
            except TrackerError:
                is_cut_off = True
        require_whole(tracker)
        if not is_cut_off:
            break
    assert call > LEAST_CALLS


def test_a_tracker_that_was_away_for_half_of_the_run_gets_all_of_it() -> None:
    tracker = FakeTracker()
    Sender(tracker).send(STORY[3])
    assert len(tracker.kept) == 1  # what it never had need not be replaced
    require_whole(tracker)


def test_of_two_runs_that_were_made_at_once_one_is_left() -> None:
    tracker = FakeTracker()
    tracker.cut_off(1, "killed after")
    with contextlib.suppress(Killed):
        Sender(tracker).send(STORY[0])
    first = tracker.live[0].run
    tracker.create_run("run", first.started_at, first.tags)
    for chapter in STORY:
        Sender(tracker).send(chapter)
    require_whole(tracker)


def test_a_process_that_knows_nothing_of_a_rollback_sends_nothing() -> None:
    tracker = FakeTracker()
    tell(tracker)
    with pytest.raises(TrackerError, match="Another process went on"):
        Sender(tracker).send(STORY[1])
    require_whole(tracker)


def test_steps_that_are_trained_again_to_the_same_values_are_not_sent_again() -> None:
    """A damaged checkpoint sends a run back, too: but to the same model."""
    tracker = FakeTracker()
    for last in (30, 20, 25, 40):
        Sender(tracker).send(wanted(points_up_to(last)))
    assert len(tracker.kept) == 1
    assert [step for step, _ in tracker.live[0].curve("loss")] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_who_goes_on_sends_what_the_tracker_has_not_got_of_each_metric_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker, sent = FakeTracker(), list[Point]()
    early = [point for point in points_up_to(20) if point.step < 20 or point.key == "loss"]
    Sender(tracker).send(wanted(early))
    log = tracker.log

    def noted(run_id: str, points: Sequence[Point], *rest: Mapping[str, str]) -> None:
        sent.extend(points)
        log(run_id, points, *rest)

    monkeypatch.setattr(tracker, "log", noted)
    Sender(tracker).send(wanted(points_up_to(25)))
    assert sent == [point for point in points_up_to(25) if point not in early]


def test_values_that_are_not_finite_are_the_same_value_again() -> None:
    tracker = FakeTracker()
    odd = [Point("loss", step, value, 1) for step, value in ((1, math.nan), (2, math.inf), (3, -math.inf))]
    for _ in range(2):
        Sender(tracker).send(wanted(odd))
    assert len(tracker.kept) == 1 and len(tracker.live[0].points) == 3


def test_a_parameter_that_changes_between_segments_is_a_tag_from_then_on() -> None:
    tracker, later = FakeTracker(), {"train.steps": "200", "train.seed": "0"}
    for parameters in (STORY[0].parameters, later, later):
        Sender(tracker).send(replace(STORY[0], parameters=parameters))
    assert tracker.live[0].run.parameters["train.steps"] == "100"
    assert tracker.live[0].run.tags["holdfast.now.train.steps"] == "200"
    Sender(tracker).send(STORY[0])
    assert tracker.live[0].run.tags["holdfast.now.train.steps"] == "100"


def test_a_validation_that_is_made_up_for_at_the_step_of_the_last_promotion_is_sent() -> None:
    tracker, before = FakeTracker(), [point for point in points_up_to(10) if point.key == "loss" or point.step == 5]
    sender = Sender(tracker)
    for points in (before, points_up_to(10)):
        sender.send(wanted(points))
    assert [step for step, _ in tracker.live[0].curve("validation/auc")] == [5, 10]


def test_who_is_abandoned_asks_for_nothing_any_more() -> None:
    tracker = FakeTracker()
    sender = Sender(tracker)
    sender.abandon()
    with pytest.raises(TrackerError):
        sender.send(STORY[0])
    assert tracker.num_calls == 0
