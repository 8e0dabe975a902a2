"""The quality gate: what passes, what becomes of what does not, and how a run goes on when the gate changes."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.events.schemas.events import Event
from pydantic import ValidationError

from storage.checkpoints.checkpoints import list_checkpoint_paths
from storage.checkpoints.strays import delete_strays
from storage.errors import ConflictError, FencedError, QualityGateError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.metric_values import MetricValue
from storage.runs.run_state import RejectedRecord, RunState, SegmentRecord, ValidationFigures
from storage.runs.transitions import end_segment, reject
from tasks.configuration.run import DataConfig, RunConfig
from tasks.prefect_bridge.alerts import GATE_REJECTED
from tasks.promotion.gate import find_rejection, read_figures
from tasks.promotion.promotion import promote_checkpoint, promote_newest
from tasks.promotion.rejected import gate_again
from tasks.reporting.status import describe_state, read_status
from tasks.run_paths import RunPaths
from tasks.verification.verdicts import VerdictMaker
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.runs import BATCH_SIZE, QUICK, lease_run, make_checkpoint, make_run
from training.configuration import CheckpointConfig, GateConfig, TrainConfig

STEPS = 40
TRAIN = TrainConfig(steps=STEPS)
# Macro-F1 of the checkpoints that are made here is a thousandth of the step where they were validated.
AT_LEAST_25 = GateConfig(lowest_metric=0.025, lowest_from_step=0)


def figures(value: MetricValue | None, best: float | None = 0.8, step: int = 20) -> ValidationFigures:
    return ValidationFigures(metric="macro_f1", value=value, step=step, best_value=best, best_step=10)


@pytest.mark.parametrize(
    ("gate", "found", "step", "words"),
    [
        (GateConfig(), figures(0.0), STEPS, None),
        (GateConfig(lowest_metric=0.7), None, STEPS, None),
        (GateConfig(lowest_metric=0.7), figures(0.7), STEPS, None),
        (
            GateConfig(lowest_metric=0.7),
            figures(0.6999),
            STEPS,
            "macro-F1 0.6999 at step 20 is below",
        ),
        (GateConfig(lowest_metric=0.7), figures(0.1), STEPS - 1, None),
        (GateConfig(lowest_metric=0.7, lowest_from_step=30), figures(0.1), 29, None),
        (GateConfig(lowest_metric=0.7, lowest_from_step=30), figures(0.1), 30, "lowest_metric = 0.7"),
        (GateConfig(lowest_metric=0.7), figures("nan"), STEPS, "macro-F1 nan at step 20 is not a finite number"),
        (GateConfig(lowest_metric=0.7), figures("nan", None), STEPS, "lowest_metric = 0.7"),
        (GateConfig(), figures(None), STEPS, None),
        (GateConfig(largest_drop=0.1), figures(None), STEPS, "macro-F1 is not defined at step 20"),
        (GateConfig(lowest_metric=0.7), figures("nan"), STEPS - 1, None),
        (GateConfig(), figures("nan"), STEPS, None),
        (GateConfig(largest_drop=0.1), figures(0.7), 1, None),
        (
            GateConfig(largest_drop=0.1),
            figures(0.69),
            1,
            "further below the best, 0.8000 at step 10",
        ),
        (GateConfig(largest_drop=0.0), figures(0.8), 1, None),
        (GateConfig(largest_drop=0.1), figures("nan"), 1, "largest_drop = 0.1"),
        (GateConfig(largest_drop=0.1), figures("nan", None), 1, "largest_drop = 0.1"),
    ],
)
def test_what_passes_and_why_the_rest_does_not(
    gate: GateConfig, found: ValidationFigures | None, step: int, words: str | None
) -> None:
    rejection = find_rejection(found, step, TRAIN, gate)
    assert rejection is None if words is None else words in (rejection or "")


@pytest.mark.parametrize(
    ("num_without_better", "validated_step", "is_asked"), [(2, 20, True), (3, 20, True), (1, 20, False), (2, 19, False)]
)
def test_the_last_step_that_the_lowest_metric_is_asked_of_may_be_an_early_one(
    num_without_better: int, validated_step: int, is_asked: bool
) -> None:
    update = {"num_without_better": num_without_better}
    found = figures(0.1, step=validated_step).model_copy(update=update)
    rejection = find_rejection(found, 20, TRAIN.model_copy(update={"patience": 2}), GateConfig(lowest_metric=0.7))
    assert (rejection is not None) == is_asked
    assert find_rejection(found, 20, TRAIN, GateConfig(lowest_metric=0.7)) is None


@given(
    value=st.floats(0, 1), best=st.floats(0, 1), lowest=st.floats(0, 1), drop=st.floats(0, 1), ease=st.floats(0, 0.5)
)
def test_a_looser_gate_lets_all_pass_that_a_stricter_one_does(
    value: float, best: float, lowest: float, drop: float, ease: float
) -> None:
    found = figures(value, max(value, best))
    strict = GateConfig(lowest_metric=lowest, largest_drop=drop)
    loose = GateConfig(lowest_metric=lowest - ease, largest_drop=drop + ease)
    assert find_rejection(found, STEPS, TRAIN, strict) is not None or find_rejection(found, STEPS, TRAIN, loose) is None


def test_the_figures_are_those_of_the_last_validation_wherever_it_was_made() -> None:
    state = {
        "best": {"metric": "auc", "value": 0.9, "step": 10},
        "history": {"validation": [{"step": 10, "metrics": {"auc": 0.9}}, {"step": 20, "metrics": {"auc": 0.8}}]},
        "validations_without_better": 1,
    }
    assert read_figures(state) == ValidationFigures(
        metric="auc", value=0.8, step=20, num_without_better=1, best_value=0.9, best_step=10
    )
    assert read_figures({"best": None, "history": {"validation": []}}) is None


def test_a_validation_that_gave_no_finite_value_yet_was_made_all_the_same() -> None:
    state = {
        "best": {"metric": "auc", "value": None, "step": None},
        "history": {"validation": [{"step": 10, "metrics": {"auc": "nan"}}]},
        "validations_without_better": 1,
    }
    found = read_figures(state)
    assert found == ValidationFigures(
        metric="auc", value="nan", step=10, num_without_better=1, best_value=None, best_step=None
    )
    assert ValidationFigures.model_validate_json(found.model_dump_json()) == found


def test_a_step_without_a_limit_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="give lowest_metric too"):
        GateConfig(lowest_from_step=10)


class Gated:
    """A run of 40 steps in its first segment, with a gate."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self.folder = folder
        self.manifest = make_run(self.store, steps=STEPS)
        self.run_paths = RunPaths(self.store, self.manifest, folder / "scratch", folder / "data")
        self.fence = lease_run(self.manifest)

    def config(self, gate: GateConfig = AT_LEAST_25, steps: int = STEPS) -> RunConfig:
        return RunConfig(
            run="run",
            data=DataConfig(text="t", label="l", kind="multiclass"),
            train=TrainConfig(batch_size=BATCH_SIZE, steps=steps),
            checkpoint=CheckpointConfig(gate=gate),
            retry=QUICK,
        )

    def save(self, step: int, validated_step: int | None = None) -> str:
        validated = step if validated_step is None else validated_step
        return make_checkpoint(self.store, self.folder / "files", step, self.fence, validated_step=validated).path

    def promote(self, path: str, gate: GateConfig = AT_LEAST_25) -> int | None:
        record = promote_checkpoint(self.config(gate), self.run_paths, path)
        return record.step if record else None

    def end(self, outcome: Any = "completed", last_step: int = STEPS) -> None:
        promoted = self.state.promoted.step if self.state.promoted else 0
        record = SegmentRecord(
            fence=self.fence, outcome=outcome, cause="", first_step=0, last_step=last_step, world_size=1,
            planned_steps=1000, started_at=0,
            seconds=0, steps_lost=last_step - promoted, phases={},
        )  # fmt: skip
        self.manifest.commit("ended", end_segment(record))

    @property
    def state(self) -> RunState:
        return self.manifest.load_head().state

    @property
    def steps_in_the_store(self) -> list[int]:
        return [step for _path, step, _fence in list_checkpoint_paths(self.store, "run")]


@pytest.fixture
def gated(tmp_path: Path) -> Gated:
    return Gated(tmp_path)


def test_a_rejected_checkpoint_is_recorded_and_a_later_better_one_is_promoted(gated: Gated) -> None:
    assert gated.promote(gated.save(10, validated_step=30)) == 10
    assert gated.promote(gated.save(20)) is None
    state = gated.state
    assert state.promoted is not None and state.promoted.step == 10
    assert [(r.checkpoint.step, r.validation.value, r.is_discarded) for r in state.rejected] == [(20, 0.02, False)]
    assert "0.0200 at step 20 is below checkpoint.gate.lowest_metric = 0.025" in state.rejected[0].reason
    assert state.quarantined == []
    assert gated.promote(gated.save(30)) == 30
    assert gated.state.rejected == [] and gated.steps_in_the_store == [10, 30]


def test_who_is_on_call_is_told_once_of_each_checkpoint_that_is_rejected(
    gated: Gated, told: Callable[[], list[Event]]
) -> None:
    path = gated.save(20)
    for _ in range(2):
        assert gated.promote(path) is None
    (event,) = told()
    assert (event.event, event.resource.id) == (GATE_REJECTED, f"holdfast.{gated.store.address}/runs/run")
    assert event.payload.items() >= {"run": "run", "step": 20}.items()
    assert "does not pass the quality gate and is not promoted: macro-F1 0.0200" in event.payload["message"]


def test_of_those_rejected_in_a_row_the_newest_keeps_its_files(gated: Gated) -> None:
    for step in (5, 10, 15, 20):
        assert gated.promote(gated.save(step, validated_step=5)) is None
        assert gated.steps_in_the_store == [step]
    assert [(r.checkpoint.step, r.is_discarded) for r in gated.state.rejected] == [(15, True), (20, False)]
    gated.end("lost", last_step=20)
    lease_run(gated.manifest)
    delete_strays(gated.store, gated.manifest.load_head())
    assert gated.steps_in_the_store == [20]


def test_a_last_checkpoint_that_is_rejected_is_one_error_that_says_what_to_do(gated: Gated) -> None:
    gated.promote(gated.save(STEPS, validated_step=20))
    gated.end()
    assert describe_state(gated.state) == "rejected"
    assert read_status(gated.store, "run")["rejected"][0]["reason"] == gated.state.rejected[0].reason
    before = gated.manifest.load_head()
    for _ in range(2):
        with pytest.raises(QualityGateError) as raised:
            gate_again(gated.config(), gated.run_paths, gated.state)
        for words in (
            "ended at step 40",
            "macro-F1 0.0200 at step 20",
            "lowest_metric = 0.025",
            "change checkpoint.gate",
        ):
            assert words in str(raised.value)
    assert gated.manifest.load_head() == before


def test_with_another_gate_it_is_promoted_and_nothing_is_trained_again(gated: Gated) -> None:
    path = gated.save(STEPS, validated_step=20)
    gated.promote(path)
    gated.end()
    state = gate_again(gated.config(GateConfig(lowest_metric=0.02)), gated.run_paths, gated.state)
    assert state == gated.state and state.is_trained and state.rejected == []
    assert state.promoted is not None and state.promoted.path == path
    assert [segment.steps_lost for segment in state.segments] == [0]
    assert gate_again(gated.config(), gated.run_paths, state) == state


def test_with_more_steps_it_is_no_last_checkpoint_any_more_and_training_goes_on_from_it(gated: Gated) -> None:
    only_at_the_end = GateConfig(lowest_metric=0.025)
    gated.promote(gated.save(STEPS, validated_step=20), only_at_the_end)
    gated.end()
    state = gate_again(gated.config(only_at_the_end, steps=STEPS + 10), gated.run_paths, gated.state)
    assert state.promoted is not None and state.promoted.step == STEPS


def test_a_rejected_checkpoint_that_was_damaged_since_is_quarantined_and_its_steps_are_trained_again(
    gated: Gated,
) -> None:
    path = gated.save(STEPS, validated_step=20)
    gated.promote(path)
    gated.end()
    gated.store.delete(f"{path}/state.json")
    state = gate_again(gated.config(GateConfig()), gated.run_paths, gated.state)
    assert state.promoted is None and state.rejected == []
    assert [record.path for record in state.quarantined] == [path]


def test_what_an_earlier_segment_left_is_not_gone_on_from(gated: Gated) -> None:
    gated.promote(gated.save(20))
    gated.end("lost", last_step=20)
    gated.fence = lease_run(gated.manifest)
    gated.end("lost", last_step=3)
    assert gated.state.rejected_point is None
    assert gate_again(gated.config(GateConfig()), gated.run_paths, gated.state).promoted is None


def test_a_segment_that_was_lost_leaves_the_newest_checkpoint_that_passes(gated: Gated) -> None:
    gated.save(15, validated_step=30)
    gated.promote(gated.save(20))
    gated.save(30, validated_step=20)
    for _ in range(2):  # the second time it is known
        promote_newest(gated.config(), gated.run_paths, gated.fence, VerdictMaker(QUICK))
        state = gated.state
        assert state.promoted is not None and state.promoted.step == 15
        assert [record.checkpoint.step for record in state.rejected if not record.is_discarded] == [30]
    promote_newest(gated.config(GateConfig()), gated.run_paths, gated.fence, VerdictMaker(QUICK))
    assert gated.state.promoted is not None and gated.state.promoted.step == 30
    assert gated.state.rejected == []


def test_only_who_holds_the_lease_rejects_and_only_forward(gated: Gated) -> None:
    gated.promote(gated.save(20))
    known = gated.state.rejected[0]
    with pytest.raises(ConflictError, match="moves forward"):
        gated.manifest.commit("rejected", reject(known))
    later = known.checkpoint.model_copy(update={"step": 25, "fence": gated.fence + 1})
    with pytest.raises(FencedError):
        gated.manifest.commit("rejected", reject(known.model_copy(update={"checkpoint": later})))
    assert gated.state.rejected == [known]


def test_a_rejection_is_read_as_it_was_written(gated: Gated) -> None:
    gated.promote(gated.save(20))
    again = RunState.model_validate_json(gated.state.model_dump_json())
    assert again == gated.state and isinstance(again.rejected[0], RejectedRecord)


def test_a_rejection_and_a_promotion_after_it_that_are_cut_off_anywhere_are_made_up_for(tmp_path: Path) -> None:
    for at in itertools.count(1):
        gated = Gated(tmp_path / str(at))
        gated.promote(gated.save(20))
        gated.save(STEPS, validated_step=20)
        cut_off = StoreCutOff(gated.store, at, ProcessGoneError())
        run_paths = replace(gated.run_paths, store=cut_off, manifest=Manifest(cut_off, "run"))
        try:
            promote_newest(gated.config(), run_paths, gated.fence, VerdictMaker(QUICK))
            gated.end()
            gate_again(gated.config(GateConfig()), run_paths, gated.state)
        except ProcessGoneError:
            if gated.state.lease is not None:
                promote_newest(gated.config(), gated.run_paths, gated.fence, VerdictMaker(QUICK))
                gated.end()
            state = gate_again(gated.config(GateConfig()), gated.run_paths, gated.state)
            assert state.is_trained and state.rejected == []
            delete_strays(gated.store, gated.manifest.load_head())
            assert gated.steps_in_the_store == [STEPS]
        else:
            assert cut_off.num_calls == at - 1
            break
    assert at > 20
