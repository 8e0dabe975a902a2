"""Which checkpoint `best`, `newest` and a step name, and what is said where none is named."""

import pytest

from storage.errors import ConfigurationError
from storage.runs.metric_values import MetricValue
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.models.choice import choose_checkpoint


def checkpoint(step: int, metric: MetricValue | None = None, fence: int = 2) -> CheckpointRecord:
    return CheckpointRecord(
        step=step, path=f"c/{step}-f{fence}", digest="0", weights_sha256="1", num_bytes=10, fence=fence,
        promoted_at=1.0, metric=metric,
    )  # fmt: skip


def state_of(*kept: CheckpointRecord) -> RunState:
    state = RunState(
        run="run", created_at=1.0, config={}, dataset_digest="d", dataset_sha256="s" * 64, steps_total=2000
    )
    return state.model_copy(update={"kept": list(kept), "promoted": kept[0] if kept else None})


STATE = state_of(
    checkpoint(1500), checkpoint(1200, "nan"), checkpoint(1000, 0.9), checkpoint(900, 0.9), checkpoint(800, 0.7)
)


def test_the_best_has_the_highest_finite_metric_and_of_equal_ones_is_the_older() -> None:
    assert choose_checkpoint(STATE, "best").step == 900


def test_the_newest_is_the_resume_point() -> None:
    assert choose_checkpoint(STATE, "newest") == STATE.promoted


@pytest.mark.parametrize("choice", ["1200", "1,200", "1_200"])
def test_a_step_names_the_checkpoint_that_is_kept_at_it(choice: str) -> None:
    assert choose_checkpoint(STATE, choice).step == 1200


def test_of_two_checkpoints_of_one_step_the_newer_is_meant() -> None:
    assert choose_checkpoint(state_of(checkpoint(10, fence=7), checkpoint(10, fence=3)), "10").fence == 7


@pytest.mark.parametrize(
    ("state", "choice", "said"),
    [
        (STATE, "700", "keeps no checkpoint of step 700.*800, 900, 1,000, 1,200, 1,500"),
        (STATE, "last", "expected 'best', 'newest' or the step .* 800, 900, 1,000, 1,200, 1,500"),
        (STATE, "-1", "expected 'best', 'newest' or the step"),
        (STATE, "²", "expected 'best', 'newest' or the step"),
        (state_of(checkpoint(5), checkpoint(4, "inf")), "best", "none is the best.*4, 5.*'newest'"),
        (state_of(), "newest", "no checkpoint yet"),
    ],
)
def test_what_names_none_is_one_error_with_the_steps_that_are_kept(state: RunState, choice: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        choose_checkpoint(state, choice)
