"""When a run simply goes on, when trying again may help, and when only a person can."""

from typing import Any

import pytest

from storage.errors import ConfigurationError, SegmentFailedError
from storage.runs.run_records import QuarantineRecord
from storage.runs.run_state import CheckpointRecord, RunState, SegmentRecord
from tasks.configuration.run import DataConfig, RunConfig, SegmentConfig
from tasks.recovery.progress_check import require_progress

CONFIG = RunConfig(run="r", data=DataConfig(text="t", label="l", kind="binary"), segment=SegmentConfig(seconds=5))


def segment(outcome: Any, first_step: int = 10, last_step: int = 30, is_final: bool = False) -> SegmentRecord:
    return SegmentRecord(
        fence=4, outcome=outcome, cause="why", first_step=first_step, last_step=last_step, world_size=1,
        planned_steps=1000, started_at=0,
        seconds=1, steps_lost=0, is_final=is_final, phases={},
    )  # fmt: skip


def state(step: int, segments: list[SegmentRecord], steps_total: int = 100) -> RunState:
    promoted = CheckpointRecord(
        step=step, path="p", digest="d", weights_sha256="w", num_bytes=1, fence=4, promoted_at=0
    )
    damaged = QuarantineRecord(step=steps_total, path="q", reason="tensor bias is not finite", quarantined_at=0)
    return RunState(
        run="r", created_at=0, config={}, dataset_digest="d",
        dataset_sha256="s" * 64, steps_total=steps_total, promoted=promoted,
        kept=[promoted], quarantined=[damaged], segments=segments,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", ["budget", "preempted", "failed", "lost", "diverged"])
def test_a_run_that_got_on_goes_on(outcome: str) -> None:
    record = segment(outcome)
    require_progress(CONFIG, record, state(20, [record]))  # raises where the run may not simply go on


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_segment_that_died_without_getting_on_is_tried_again(outcome: str) -> None:
    record = segment(outcome)
    with pytest.raises(SegmentFailedError, match=f"ended as {outcome}: why"):
        require_progress(CONFIG, record, state(10, [record]))


def test_a_mistake_that_a_rank_found_is_not_tried_again() -> None:
    record = segment("failed", is_final=True)
    with pytest.raises(ConfigurationError, match="could not run: why"):
        require_progress(CONFIG, record, state(20, [record]))


def test_a_last_checkpoint_that_was_rejected_is_an_error_with_its_reason() -> None:
    record = segment("completed", last_step=100)
    with pytest.raises(SegmentFailedError, match="tensor bias is not finite"):
        require_progress(CONFIG, record, state(80, [record]))


def test_a_budget_that_ends_before_the_first_step_is_an_error_and_no_endless_loop() -> None:
    record = segment("budget", first_step=10, last_step=10)
    with pytest.raises(ConfigurationError, match=r"segment.seconds = 5, before its first step"):
        require_progress(CONFIG, record, state(10, [record]))
