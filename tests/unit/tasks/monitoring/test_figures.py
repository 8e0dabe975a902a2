"""The figures of a segment are what ranks and manifest say, under names and labels as Prometheus wants them."""

import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from storage.runs.holders import this_process
from storage.runs.run_state import Lease, RunState, Throughput
from tasks.monitoring.figures import LABELS, SegmentFigures
from tests.helpers.finished_runs import checkpoint_at, segments_of, state_of
from training.metrics.reporter import CheckpointReport, Report

README = Path(__file__).parents[4] / "deployments" / "README.md"
STORE = 's3://bucket/"quoted"'
Samples = dict[tuple[str, str], float]


@pytest.fixture
def state() -> RunState:
    """The third segment of a run began: the first was lost with 37 steps, the second spent its budget."""
    ended = segments_of([("lost", "killed", 137, 37), ("budget", "budget of 20 s", 200, 0)])
    lease = Lease(fence=16, holder=this_process(), world_size=4, planned_steps=1000, first_step=200, taken_at=1.0)
    return state_of("run", 1000, ended, lease=lease)


def read(figures: SegmentFigures) -> Samples:
    """The value of each sample, by its name and the label that it has beside run and store."""
    registry = CollectorRegistry()
    registry.register(figures)
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation and family.type in ("gauge", "counter"), family
        for sample in family.samples:
            assert (sample.labels["run"], sample.labels["store"]) == ("run", STORE)
            others = [value for label, value in sample.labels.items() if label not in LABELS]
            found[sample.name, "".join(others)] = sample.value
    return found


def test_before_the_first_report_the_manifest_is_known(state: RunState) -> None:
    found = read(SegmentFigures(STORE, state, 1000))
    assert found["holdfast_step", ""] == found["holdfast_promoted_step", ""] == 200
    assert found["holdfast_planned_steps", ""] == 1000
    assert found["holdfast_ranks", ""] == 4
    assert found["holdfast_segments_total", "lost"] == found["holdfast_segments_total", "budget"] == 1
    assert found["holdfast_steps_lost", ""] == 37
    assert (found["holdfast_phase", "start"], found["holdfast_phase", "train"]) == (1, 0)
    unknown = ("loss", "samples_per_second", "tokens_per_second", "input_wait_ratio")
    assert [name for name in unknown if (f"holdfast_{name}", "") in found] == []


def test_what_the_ranks_report_is_shown(state: RunState) -> None:
    figures = SegmentFigures(STORE, state, 1000)
    measured = Throughput(samples_per_second=64.5, tokens_per_second=2000, input_wait_fraction=0.0)
    figures.heard(Report(phase="train", step=230, loss=0.25, throughput=measured))
    found = read(figures)
    assert (found["holdfast_step", ""], found["holdfast_loss", ""]) == (230, 0.25)
    assert (found["holdfast_samples_per_second", ""], found["holdfast_tokens_per_second", ""]) == (64.5, 2000)
    assert found["holdfast_input_wait_ratio", ""] == 0
    assert (found["holdfast_phase", "start"], found["holdfast_phase", "train"]) == (0, 1)
    assert 0 <= found["holdfast_report_age_seconds", ""] < 60


def test_saves_that_are_complete_or_failed_are_told_apart(state: RunState) -> None:
    figures = SegmentFigures(STORE, state, 1000)
    figures.heard(Report(phase="save", step=300, checkpoint=CheckpointReport(path="q", step=300)))
    figures.heard(Report(phase="train", step=330, alarm="The checkpoint of step 320 could not be written."))
    found = read(figures)
    assert (found["holdfast_saves_total", ""], found["holdfast_failed_saves_total", ""]) == (1, 1)


def test_a_promotion_moves_the_step_and_its_age_begins_anew(state: RunState) -> None:
    figures = SegmentFigures(STORE, state, 1000)
    assert read(figures)["holdfast_promotion_age_seconds", ""] > 3600
    figures.promoted(checkpoint_at("run", 300).model_copy(update={"promoted_at": time.time() - 5}))
    found = read(figures)
    assert found["holdfast_promoted_step", ""] == 300
    assert 5 <= found["holdfast_promotion_age_seconds", ""] < 60


def test_without_a_checkpoint_there_is_no_age_of_one(state: RunState) -> None:
    begun = state.model_copy(update={"promoted": None, "kept": [], "segments": []})
    found = read(SegmentFigures(STORE, begun, 1000))
    assert found["holdfast_promoted_step", ""] == 0
    assert ("holdfast_promotion_age_seconds", "") not in found


def test_the_readme_explains_each_figure_and_no_other(state: RunState) -> None:
    explained = set(re.findall(r"^\| `(holdfast_\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE))
    figures = SegmentFigures(STORE, state, 1000)
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in figures.collect()}
    assert explained == names
