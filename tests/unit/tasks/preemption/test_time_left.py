"""Whether a save fits into the time that a notice leaves, from what the run has measured."""

import pytest

from storage.runs.run_state import RunState, SaveFigures
from tasks.configuration.notices import NoticesConfig
from tasks.preemption.time_left import warn_of_short_notice
from tests.helpers.finished_runs import measured_run, state_of

ALL = NoticesConfig(clouds=["aws", "gcp", "azure"])


def saving_for(*seconds: float) -> RunState:
    """A run whose steps took half a second, and whose first segments needed so long for each of two saves."""
    state = measured_run()
    saves = [SaveFigures(count=2, stall_seconds=0.2, durable_seconds=2 * one, num_bytes=1) for one in seconds]
    saves += [SaveFigures(count=0, stall_seconds=0, durable_seconds=0, num_bytes=0)] * (
        len(state.segments) - len(saves)
    )
    segments = [s.model_copy(update={"saves": one}) for s, one in zip(state.segments, saves, strict=True)]
    return state.model_copy(update={"segments": segments})


def warned(config: NoticesConfig, state: RunState) -> list[str]:
    said: list[str] = []
    warn_of_short_notice(config, said.append, state)
    return said


def test_a_save_that_fits_with_a_step_is_not_a_word_worth() -> None:
    assert warned(ALL, saving_for(29.4)) == []
    assert warned(ALL, state_of("new", 100, [])) == []


def test_one_that_does_not_is_told_once_with_what_to_do() -> None:
    (said,) = warned(ALL, saving_for(4, 29.6, 8))
    assert "this run needed 30 s from the beginning of a save until it was durable, and 0.5 s for a step" in said
    assert "Compute Engine's metadata server announces at least 30 s ahead" in said and "Azure's" in said
    assert "AWS" not in said
    assert "checkpoint.every_seconds" in said and "faster store" in said


def test_each_cloud_is_held_against_what_it_documents() -> None:
    aws = NoticesConfig(clouds=["aws"])
    assert warned(aws, saving_for(119.4)) == []
    (said,) = warned(aws, saving_for(119.6))
    assert "AWS's instance metadata service announces at least 120 s ahead" in said
    assert warned(NoticesConfig(file="/notice"), saving_for(3000)) == []
    assert warned(NoticesConfig(), saving_for(3000)) == []


def test_a_cancel_in_prefect_counts_where_a_worker_started_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d5c0a34-0000-4000-8000-000000000000")
    assert warned(NoticesConfig(), saving_for(29.4)) == []
    (said,) = warned(NoticesConfig(), saving_for(29.6))
    assert "Prefect kills a flow run 30 s after its cancel" in said and "`holdfast stop RUN`" in said
