"""A progress file on a disk that is full for a while: what must come does, in whole lines; and nobody ends for it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.segments import find_outcome
from tasks.cluster import reports as cluster_reports
from tasks.cluster.reports import ReportFollower
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.configuration import DivergenceConfig
from training.metrics.curve import LossCurve
from training.metrics.report_file import ReportFile
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.outcome import Ending
from training.world import World

FIRST = World(0, 1, 0, 1)


@contextmanager
def no_file_grows_beyond(num_bytes: int) -> Iterator[None]:
    """A write up to there is cut off there, and one behind it fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_was_cut_off_is_completed_and_of_the_others_what_must_come_comes(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    file = ReportFile(path)
    with no_file_grows_beyond(10):
        file.write("first", must_come=False)
        file.write("second", must_come=False)  # four bytes of it
        file.write("third", must_come=False)
        file.write("fourth", must_come=True)
        file.write("fifth", must_come=False)
        assert path.read_text() == "first\nseco"
    file.write("sixth", must_come=False)
    file.close()
    assert path.read_text() == "first\nsecond\nfourth\nsixth\n"


def test_a_rank_goes_on_and_its_checkpoint_is_reported_later(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reporter = Reporter(path, FIRST, batch_size=8)
    with no_file_grows_beyond(0):
        reporter.checkpointed("runs/small/checkpoints/5", 5)
        reporter.stepped(6, 0.5, 100, 1)
    reporter.noted("the disk has space again")
    reports = ReportFollower(path).read()
    assert [report.checkpoint and report.checkpoint.step for report in reports] == [5, None]
    assert reports[-1].step == 6


def test_who_is_far_behind_is_given_what_is_said_once_the_beginnings_of_phases_and_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reports, "MOST_REPORTS", 10)
    path = tmp_path / "progress.jsonl"
    reporter, follower = Reporter(path, FIRST, batch_size=8), ReportFollower(path)
    for step in range(1, 1001):
        with reporter.phase("train"):
            reporter.stepped(step, 0.5, 100, 1)
            for _ in range(5):
                reporter._report()
        if step % 100 == 0:
            reporter.checkpointed(f"checkpoints/{step}", step)
    found = follower.read()
    assert [report.step for report in found if report.checkpoint is not None] == list(range(100, 1001, 100))
    begun = [report.step for report in found if report.phase == "train"]
    assert set(begun) >= set(range(0, 1000, 100)) and found[-1].step == 1000 and len(found) < 50
    assert follower.read() == []
    reporter.noted("the next one")
    assert [report.note for report in follower.read()] == ["the next one"]


def test_the_outcome_is_recorded_though_no_report_can_be_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=20), tmp_path / "scratch", fence=2)
    reporter = Reporter(Path("/dev/full"), FIRST, batch_size=8)
    state = TrainingState(LossCurve(1, DivergenceConfig()))
    ending = Ending(spec, FIRST, store, reporter, state, age_seconds=0)
    ending.write("preempted", "asked to stop by a signal")
    found = find_outcome(store, spec.run, 2)
    assert found is not None and found.outcome == "preempted"


def test_a_line_that_a_rank_did_not_live_to_end_is_taken_away_by_the_next_one_to_report(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    ReportFile(path).write("{}", must_come=False)
    with path.open("a") as file:
        file.write('{"phase": "tr')
    ReportFile(path).write('{"step": 1}', must_come=False)
    assert path.read_text() == '{}\n{"step": 1}\n'
