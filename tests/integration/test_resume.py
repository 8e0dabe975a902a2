"""A segment that starts from a checkpoint ends with the bits of one that was never interrupted."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.datasets import DatasetManifest, dataset_sha256
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_anew, publish_small_dataset
from tests.helpers.processes import train_segment
from tests.helpers.training import checkpoint_at, make_spec, read_log, read_state, train_forked
from training.checkpointing.restoring import Restorer
from training.optim.optimization import Optimization
from training.spec import SegmentSpec
from training.validation_configuration import ValidationConfig
from training.world import World


@dataclass(frozen=True)
class Interrupted:
    """A run of 20 steps on one rank, validated as by default, and the same one from its checkpoint of step 7 on."""

    store: LocalStore
    dataset: DatasetManifest
    straight: SegmentSpec
    resumed: SegmentSpec


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted")
    store = LocalStore(folder / "store")
    dataset = publish_small_dataset(store, folder / "work")
    by_default = {"validation": ValidationConfig(batch_size=20)}
    straight = make_spec(store, dataset, folder / "straight", fence=2).model_copy(update=by_default)
    assert train_forked(straight, store).outcome == "completed", read_log(straight)
    point = checkpoint_at(store, 7, 2)
    resumed = make_spec(store, dataset, folder / "resumed", fence=3, resume=point).model_copy(update=by_default)
    outcome = train_forked(resumed, store)
    assert (outcome.outcome, outcome.first_step, outcome.last_step) == ("completed", 7, 20), read_log(resumed)
    return Interrupted(store, dataset, straight, resumed)


def test_a_resumed_segment_ends_with_the_same_bits(interrupted: Interrupted) -> None:
    """With dropout, metadata, a batch across two epochs. Other precisions and numbers of ranks: `test_elastic.py`."""
    store = interrupted.store
    for step in (14, 20):
        expected, actual = checkpoint_at(store, step, 2), checkpoint_at(store, step, 3)
        verify_checkpoint(store, actual.path, actual.digest)
        assert actual.index.files == expected.index.files, f"step {step}"


def test_a_short_run_that_says_nothing_of_validations_has_five_also_when_it_was_interrupted(
    interrupted: Interrupted,
) -> None:
    store = interrupted.store
    of_straight, of_resumed = (read_state(store, checkpoint_at(store, 20, fence))["history"] for fence in (2, 3))
    assert [validation["step"] for validation in of_straight["validation"]] == [4, 8, 12, 16, 20]
    assert of_resumed == of_straight


def test_a_checkpoint_restores_everything_that_a_run_is_made_of(interrupted: Interrupted, tmp_path: Path) -> None:
    store = interrupted.store
    spec = make_spec(store, interrupted.dataset, tmp_path / "segment", fence=4, precision="fp16")
    assert train_forked(spec, store).outcome == "completed", read_log(spec)
    found = checkpoint_at(store, 20, 4)
    assert found.index.configuration == spec.model_dump(mode="json", include={"model", "train"})
    state = read_state(store, found)
    assert (state["step"], state["cursor"], state["epoch"]) == (20, 480, 1)
    assert set(state["optimization"]["scaler"]) >= {"scale", "growth_factor", "_growth_tracker"}
    assert [step for step, _, _ in state["history"]["loss"]] == [5, 10, 15, 20]
    assert [validation["step"] for validation in state["history"]["validation"]] == [10, 20]
    assert state["best"]["metric"] == "macro_f1"
    assert state["best"]["value"] == max(v["metrics"]["macro_f1"] for v in state["history"]["validation"])


def test_a_time_budget_ends_a_segment_with_a_checkpoint_of_its_last_step(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    store, steps = interrupted.store, 1_000_000
    spec = make_spec(
        store, interrupted.dataset, tmp_path / "first", 8, budget_seconds=0.5, steps=steps, every_steps=steps
    )
    outcome = train_forked(spec, store)
    assert (outcome.outcome, outcome.cause) == ("budget", "time budget of 0.5 s"), read_log(spec)
    assert 0 < outcome.last_step < steps and outcome.seconds >= 0.5
    point = checkpoint_at(store, outcome.last_step, 8)
    following = make_spec(store, interrupted.dataset, tmp_path / "next", 9, point, steps=outcome.last_step + 3)
    assert train_forked(following, store).last_step == outcome.last_step + 3, read_log(following)


def test_ranks_read_no_other_data_set_than_the_one_they_are_told(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    pinned = {"dataset_sha256": dataset_sha256(store, dataset.digest)}
    # What a preparation of the same source by other libraries leaves, where dataset.json was deleted before.
    publish_anew(store, dataset.model_copy(update={"versions": {"tokenizers": "99.0"}}))
    spec = make_spec(store, dataset, tmp_path / "segment").model_copy(update=pinned)
    outcome = train_forked(spec, store)
    assert (outcome.outcome, outcome.is_final) == ("failed", True), read_log(spec)
    assert "is not the one that the run was begun with" in outcome.cause


def killed_in_restore(spec: SegmentSpec, world: World) -> Any:
    """The second rank is killed as files go round, as the system does that has no memory left."""
    pass_round = Restorer._pass_round

    def die_or_pass_round(self: Restorer, *arguments: Any) -> Any:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return pass_round(self, *arguments)

    Restorer._pass_round = die_or_pass_round  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


def out_of_memory_in_restore(spec: SegmentSpec, world: World) -> Any:
    """As where the rank before has not yet given back the GPU's memory."""

    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.")

    Optimization.load_tensors = fail  # type: ignore[method-assign, assignment]
    return train_segment(spec, world)


@pytest.mark.parametrize(("fault", "ranks"), [(killed_in_restore, 2), (out_of_memory_in_restore, 1)])
def test_a_rank_that_dies_in_a_restore_is_no_reason_to_give_the_run_up(
    fault: Any, ranks: int, interrupted: Interrupted, tmp_path: Path
) -> None:
    store, point = interrupted.store, checkpoint_at(interrupted.store, 14, 2)
    spec = make_spec(store, interrupted.dataset, tmp_path / "faulty", fence=4 + ranks, resume=point, ranks=ranks)
    outcome = train_forked(spec, store, fault)
    assert (outcome.outcome, outcome.is_final) == ("failed", False)
    assert "does not fit" not in outcome.cause
