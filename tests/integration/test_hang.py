"""Ranks that do not get on are killed, and what became of them is written down."""

from pathlib import Path

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.segments import find_outcome
from tasks.places import RunPlaces
from tasks.running.following import ReportFollower
from tasks.running.hang import HangWatch
from tasks.running.ranks import POLL_SECONDS
from tests.helpers.commands import processes_mentioning
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import launch, make_spec

PATIENCE_SECONDS = 600.0


def test_ranks_that_are_silent_for_too_long_are_killed_and_those_that_report_are_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=100_000, ranks=2)
    places = RunPlaces(store, Manifest(store, spec.run), tmp_path, tmp_path)
    patient, impatient = HangWatch(PATIENCE_SECONDS), HangWatch(0.0)
    reports, step = ReportFollower(spec.progress_file), 0
    with launch(spec) as ranks:
        while ranks.is_running(POLL_SECONDS) and step == 0:
            for report in reports.read():
                patient.heard(report.step)
                step = report.step
            assert not patient.end_if_hung(places, spec, ranks)
        assert step > 0 and processes_mentioning(str(spec.scratch_folder))
        impatient.heard(step)
        assert impatient.end_if_hung(places, spec, ranks)
        assert not ranks.is_running(0)
    assert processes_mentioning(str(spec.scratch_folder)) == []
    outcome = find_outcome(store, spec.run, spec.fence)
    assert outcome is not None and (outcome.outcome, outcome.last_step) == ("failed", step)
    assert "reported nothing for 0 s (segment.hang_seconds)" in outcome.cause
