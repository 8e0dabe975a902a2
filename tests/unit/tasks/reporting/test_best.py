"""The model that is shown is the one that an export takes: the best one; what is told where the last one is another."""

from pathlib import Path
from typing import Any

import pytest

from flows.commands.status import render_status
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.rollbacks.quarantine import moved_back
from storage.runs.run_records import TestedRecord
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.models.choice import choose_checkpoint
from tasks.prefect_bridge.segment_end import describe_segment_end
from tasks.reporting.all_runs import list_runs
from tasks.reporting.best import describe_best, describe_overfitting
from tasks.reporting.run_page import run_verdict
from tasks.reporting.status import describe_status
from tests.helpers.finished_runs import segments_of
from tests.helpers.terminals import shown

STEPS, BEST = 1000, 400


def checkpoint(step: int, metric: float) -> CheckpointRecord:
    return CheckpointRecord(
        step=step, path=f"runs/run/{step}", digest="d", weights_sha256=f"w{step}", num_bytes=1, fence=2,
        promoted_at=1.0, metric=metric,
    )  # fmt: skip


def complete(best: float = 0.8512, last: float = 0.815, **changes: Any) -> RunState:
    """A run that was trained to its end and tested; its best model is one of before."""
    kept = [checkpoint(STEPS, last), checkpoint(STEPS - 100, last - 0.1), checkpoint(BEST, best)]
    state = RunState(
        run="run", created_at=0, config={"data": {"kind": "multiclass"}}, dataset_digest="d",
        dataset_sha256="s" * 64, steps_total=STEPS,
        promoted=kept[0], kept=kept, segments=segments_of([("completed", "", STEPS, 0)]),
        metrics={"macro_f1": 0.7}, metrics_step=STEPS,
        best_tested=TestedRecord(step=BEST, path=kept[2].path, metrics={"macro_f1": 0.8}),
    )  # fmt: skip
    return state.model_copy(update=changes)


def test_the_headline_is_of_the_checkpoint_that_an_export_takes() -> None:
    state = complete()
    assert state.headline is not None
    assert (state.headline.path, state.headline.metrics) == (choose_checkpoint(state, "best").path, {"macro_f1": 0.8})
    assert state.is_complete and RunState.model_validate_json(state.model_dump_json()) == state


def test_where_the_best_one_is_gone_or_the_last_one_the_headline_is_of_the_last_one() -> None:
    without = complete(best_tested=None)
    assert without.headline == TestedRecord(step=STEPS, path=f"runs/run/{STEPS}", metrics={"macro_f1": 0.7})
    lost = complete()
    lost = lost.model_copy(update={"kept": lost.kept[:2]})
    assert lost.headline == without.headline
    assert moved_back(complete(), complete().kept[1:]).headline is None


def test_both_are_told_and_what_it_means_that_the_last_one_is_worse() -> None:
    assert describe_best(complete()) == "best at step 400 (macro-F1 0.8512 in validation), last 0.8150"
    told = describe_overfitting(complete())
    assert (
        told is not None
        and "From step 400 on no validation gave a better macro-F1." in told
        and "train.patience, for instance 3" in told
    )
    patient = complete(config={"data": {"kind": "multiclass"}, "train": {"patience": 2}})
    told = describe_overfitting(patient)
    assert told is not None and "train.patience" not in told
    assert describe_overfitting(complete(last=0.8512)) is None
    alone = complete()
    alone = alone.model_copy(update={"kept": alone.kept[:1]})
    assert describe_best(alone) is None and describe_overfitting(alone) is None
    assert "The best at step 400 (macro-F1 0.8512 in validation), last 0.8150." in run_verdict(complete()).remarks


def test_status_and_runs_have_the_headline(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    manifest = Manifest(store, "run")
    manifest.create(complete())
    status = describe_status(store, manifest.load_head())
    assert (status["metrics"], status["metrics_step"]) == ({"macro_f1": 0.8}, BEST)
    assert status["last_metrics"] == {"macro_f1": 0.7}
    text = shown(render_status(status))
    assert "test, of the model of step 400: macro_f1 0.8000" in text and "best at step 400" in text
    (listed,) = list_runs(store)["runs"]
    assert listed["newest_metric"] == {"name": "macro_f1", "value": 0.8, "step": BEST, "split": "test"}


@pytest.mark.parametrize(
    ("patience", "words"),
    [(None, "Trained to the last step, 550."), (3, "Stopped early at step 550 of 1,000: no better one.")],
)
def test_an_early_end_is_not_called_the_last_step(patience: int | None, words: str) -> None:
    (segment,) = segments_of([("completed", "no better one" if patience else "", 550, 0)])
    assert describe_segment_end(segment.model_copy(update={"patience": patience, "planned_steps": 1000})) == words


def test_of_a_failure_that_is_not_tried_again_nothing_is_said_of_going_on() -> None:
    (segment,) = segments_of([("failed", "Two sentences. There is no key.", 550, 50)])
    again = "Segment ended: failed (Two sentences. There is no key). The run goes on from step 500, 50 steps lost."
    assert describe_segment_end(segment) == again
    final = describe_segment_end(segment.model_copy(update={"is_final": True}))
    start = "Segment ended: failed at step 550, 50 steps lost, and it is not tried again: "
    assert final == start + "Two sentences. There is no key."
