"""The sign of life of a run's holder says which of its ranks died while the others trained on."""

import time
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.segments import Heartbeat as Beat
from storage.runs.segments import find_heartbeat
from tasks.run_paths import RunPaths
from tasks.supervision import heartbeat
from tasks.supervision.heartbeat import MOST_VIEWS, Heartbeat
from tests.helpers.runs import lease_run, make_run
from training.metrics.reporter import Report
from training.views.folder import ViewFolder
from training.views.view import Going, LostMember, Member, View

LONGEST_SECONDS = 60.0


def wait_for(store: LocalStore, fence: int, num_lost: int) -> Beat:
    """The first sign of life that tells of so many deaths."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        beat = find_heartbeat(store, "run", fence)
        if beat is not None and (beat.view_totals.num_lost if beat.view_totals else 0) == num_lost:
            return beat
        assert time.monotonic() < deadline
        time.sleep(0.02)  # a thread writes it


def lose(folder: ViewFolder, number: int) -> None:
    lost = [LostMember(member=Member(slot=1, life=number), pid=7, signal=9)]
    folder.commit(View(number=number, members=[Member(slot=0, life=0)], lost=lost, committed_at=0.0))
    folder.say_going(number, Going(step=number, seconds=0.2))


def test_deaths_are_told_while_the_segment_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.05)
    store = LocalStore(tmp_path / "store")
    manifest: Manifest = make_run(store)
    fence, paths = lease_run(manifest), RunPaths(store, manifest, tmp_path / "scratch", tmp_path / "data")
    lease = manifest.load_head().state.lease
    assert lease is not None
    with Heartbeat(paths, lease) as beating:
        assert wait_for(store, fence, 0).views == []
        folder = ViewFolder(paths.segment_scratch(fence))
        paths.segment_scratch(fence).mkdir(parents=True)
        folder.create()
        lose(folder, 1)
        assert [view.step for view in wait_for(store, fence, 1).views] == [1]
        for number in range(2, 31):
            lose(folder, number)
        folder.say_out(1)
        beating.hear(Report(phase="train", step=31, loss=0.5))
        found = wait_for(store, fence, 30)
    assert len(found.views) == 2 * MOST_VIEWS and found.views[-1].step == 30
    last = find_heartbeat(store, "run", fence)
    assert last is not None and last.view_totals is not None and last.view_totals.stay_out == [1]
