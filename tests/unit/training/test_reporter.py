"""What ranks report of themselves: the seconds of each phase, also of the one that goes on."""

from pathlib import Path

import pytest

from tasks.launching.reports import ReportFollower
from training.watching.reporter import Reporter
from training.world import World


def test_each_report_has_the_seconds_of_all_phases_up_to_then_and_the_last_one_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("training.watching.reporter.time.monotonic", lambda: now)
    reporter = Reporter(tmp_path / "progress.jsonl", World(0, 1, 0, 1), batch_size=8, age_seconds=5.0)
    now += 2
    with reporter.phase("train"):
        now += 10
        with reporter.phase("save"):
            now += 1
            reporter.noted("within the save")
        now += 20
        reporter.noted("within the training")
    recorded = reporter.close()
    noted = {report.note: report.phases for report in ReportFollower(tmp_path / "progress.jsonl").read()}
    assert noted["within the save"] == {"start": 7, "train": 10, "save": 1}
    assert noted["within the training"] == {"start": 7, "train": 30, "save": 1}
    assert noted[None] == recorded == {"start": 7, "train": 30, "save": 1}
