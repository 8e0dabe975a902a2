"""What ranks report of themselves: the seconds of each phase, also of the one that goes on."""

import json
from pathlib import Path

import pytest

from storage.runs.run_state import ValidationFigures
from tasks.cluster.reports import ReportFollower
from training.metrics.reporter import Reporter
from training.world import World


def test_each_report_has_the_seconds_of_all_phases_up_to_then_and_the_last_one_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("training.metrics.reporter.time.monotonic", lambda: now)
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


def test_a_validation_is_a_line_of_the_log_and_stays_in_the_reports_that_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = ValidationFigures(metric="auc", value=0.85, step=400, best_value=0.9, best_step=300)
    reporter = Reporter(tmp_path / "progress.jsonl", World(0, 1, 0, 1), batch_size=8)
    reporter.validated(figures)
    reporter.close()
    assert "Validation at step 400: ROC AUC 0.8500, best 0.9000 at step 300." in capsys.readouterr().out
    reports = ReportFollower(tmp_path / "progress.jsonl").read()
    assert [report.validation for report in reports] == [figures, figures]


def test_a_validation_is_told_in_words() -> None:
    figures = ValidationFigures(metric="macro_f1", value=0.8512, step=400, best_value=0.8512, best_step=400)
    assert figures.describe() == "validation at step 400: macro-F1 0.8512, best so far"
    undefined = figures.model_copy(update={"metric": "auc", "value": None, "best_value": None, "best_step": None})
    assert undefined.describe() == "validation at step 400: ROC AUC not defined, as all samples are of one class"
    assert undefined.model_copy(update={"value": "nan"}).describe() == "validation at step 400: ROC AUC nan"


def test_a_rank_that_comes_to_report_goes_on_where_another_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, path = 1000.0, tmp_path / "progress.jsonl"
    monkeypatch.setattr("training.metrics.reporter.time.monotonic", lambda: now)
    first, world = Reporter(path, World(0, 2, 0, 2), batch_size=8, age_seconds=5.0), World(1, 2, 1, 2)
    joined = Reporter(path, world, batch_size=8)
    with first.phase("train"):
        now += 10
        first.stepped(3, 0.5, num_tokens=100, num_microbatches=2)
        told = json.loads(json.dumps(first.state_dict()))
    joined.noted("of a rank that is not the first nobody hears")
    joined.load_state_dict(told)
    world.enter([1], None)
    with joined.phase("train"):
        now += 4
        joined.stepped(4, 0.5, num_tokens=100, num_microbatches=4)
        joined.noted("alone")
    last = ReportFollower(path).read()[-1]
    assert (last.note, last.step, last.loss, last.phases) == ("alone", 4, 0.5, {"start": 5, "train": 14})
    assert joined.close() == {"start": 5, "train": 14}
    throughput = joined.throughput()
    assert throughput is not None and throughput.samples_per_second == pytest.approx(2 * 8 / 14, abs=1e-3)
