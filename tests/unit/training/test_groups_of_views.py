"""The group in which the ranks of a view talk: how long forming it may take says nothing of what they send later."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from training.meeting import Meeting
from training.views import group
from training.views.folder import ViewFolder
from training.views.group import form_group
from training.views.meetings import open_meeting
from training.views.view import Member, View

FORMING_SECONDS = 2.0
VIEW = View(number=1, members=[Member(slot=slot, life=0) for slot in range(2)], committed_at=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> ViewFolder:
    views = ViewFolder(tmp_path)
    views.create()
    return views


def form(folder: ViewFolder, rank: int) -> Any:
    return form_group(open_meeting(VIEW, rank, folder, Meeting(), set()), 1, rank, 2, lambda: False)


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
