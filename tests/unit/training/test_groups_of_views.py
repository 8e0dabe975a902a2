"""The group in which the ranks of a view talk: how long forming it may take says nothing of what they send later."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from training.meeting import Address, Meeting
from training.stopping import StopFlag, StopReason
from training.views import group, membership
from training.views.ear import Answer, Ear
from training.views.folder import ViewFolder
from training.views.group import form_group
from training.views.meetings import open_meeting
from training.views.membership import Membership
from training.views.view import Member, View
from training.world import World

FORMING_SECONDS = 2.0
VIEW = View(number=1, members=[Member(slot=slot, life=0) for slot in range(2)], committed_at=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> ViewFolder:
    views = ViewFolder(tmp_path)
    views.create()
    return views


def form(folder: ViewFolder, rank: int) -> Any:
    return form_group(
        open_meeting(VIEW, rank, folder, Meeting(), set(), lambda find: find()), 1, rank, 2, lambda: False
    )


@pytest.fixture
def groups(folder: ViewFolder, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The group of two ranks, as each of them has it."""
    monkeypatch.setattr(group, "FORMING_TIMEOUT", timedelta(seconds=FORMING_SECONDS))

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(partial(form, folder), range(2)))


def test_a_rank_may_wait_for_another_one_for_longer_than_forming_may_take(groups: list[Any]) -> None:
    first, second = groups
    received = torch.zeros(1)

    def send_late() -> None:
        time.sleep(FORMING_SECONDS + 1)  # as a rank does that computes a long step
        second.send([torch.ones(1)], 0, 0).wait()

    with ThreadPoolExecutor(1) as late:
        sending = late.submit(send_late)
        first.recv([received], 1, 0).wait()
        sending.result()
    assert received.item() == 1


def test_a_group_whose_members_do_not_come_is_given_up(folder: ViewFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "FORMING_TIMEOUT", timedelta(seconds=0.2))
    assert form(folder, 0) is None


@pytest.mark.parametrize("reason", ["asked to stop", "nobody goes on"])
def test_a_first_member_that_does_not_come_is_waited_for_no_longer_than_there_is_hope(
    folder: ViewFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(membership, "MEETING_SECONDS", 0.2)
    is_hopeless, flag = False, StopFlag()
    with closing(Ear("run-7", lambda question: Answer(is_hopeless=is_hopeless))) as ear:
        address = Address(host="127.0.0.1", port=ear.port)
        world = World(1, 2, 0, 1, meeting=Meeting(ear=address, segment="run-7"))
        folder.commit(VIEW.model_copy(update={"meeting": address}))
        with ThreadPoolExecutor(1) as ranks:
            entering = ranks.submit(Membership(world, flag, folder).enter_next, 0.2)
            with pytest.raises(TimeoutError):
                entering.result(1.5)
            if reason == "asked to stop":
                monkeypatch.setattr(flag, "reason", lambda: StopReason.PREEMPTED)
            else:
                is_hopeless = True
            assert entering.result(60) is None


@pytest.mark.parametrize("comes", [True, False], ids=["comes", "does not come"])
def test_a_view_that_was_decided_just_before_a_request_to_stop_is_entered(
    folder: ViewFolder, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Of one that does not come the wait is short, and as long as the time to save it is not."""
    flag = StopFlag()
    monkeypatch.setattr(flag, "reason", lambda: StopReason.PREEMPTED)
    monkeypatch.setattr(membership, "NOTICED_SECONDS", 60.0 if comes else 0.2)
    alone = VIEW.model_copy(update={"members": VIEW.members[:1]})
    with ThreadPoolExecutor(1) as ranks:
        entering = ranks.submit(Membership(World(0, 2, 0, 2), flag, folder).enter_next, 60.0)
        if comes:
            with pytest.raises(TimeoutError):
                entering.result(0.2)
            folder.commit(alone)
        assert entering.result(30) == (alone if comes else None)
