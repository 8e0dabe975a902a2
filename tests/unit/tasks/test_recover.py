"""The task `recover`: a new run begins, an old one goes on with the configuration of this command."""

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import DatasetManifest
from storage.errors import IncompatibleRunError, RunBusyError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Generation, Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import RunState
from storage.runs.transitions import promote, take_lease
from tasks.config.changes import as_begun
from tasks.configuration.run import RunConfig
from tasks.models.own_code import pin_code
from tasks.promotion.promotion import promote_checkpoint
from tasks.recover import recover
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.holders import parent_process
from tests.helpers.own_modules import write_optimizer
from tests.helpers.runs import BATCH_SIZE, lease_run, make_checkpoint, record_of

DATA = {"text": "t", "label": "l", "kind": "binary"}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work")


def config_of(store: LocalStore, **train: Any) -> RunConfig:
    settings = {"batch_size": BATCH_SIZE, "steps": 100} | train
    return RunConfig.model_validate({"run": "run", "store": store.address, "data": DATA, "train": settings})


def recovered(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """What the task returns, and what it says of it, without Prefect around it."""
    state, sentence = inspect.unwrap(recover)(config, dataset)
    return state, sentence


def test_a_new_run_begins_at_step_0_and_what_it_was_begun_with_is_in_its_manifest(
    store: LocalStore, dataset: DatasetManifest
) -> None:
    config = config_of(store)
    state, sentence = recovered(config, dataset)
    assert sentence == "A new run: it begins at step 0."
    assert Manifest(store, "run").load_head().state == state
    assert (state.run, state.dataset_digest, state.steps_total) == ("run", dataset.digest, 100)
    assert state.config == as_begun(config, None).model_dump(mode="json")
    assert (state.promoted, state.lease, state.segments) == (None, None, [])


def test_taking_up_an_unchanged_run_writes_nothing(store: LocalStore, dataset: DatasetManifest) -> None:
    recovered(config_of(store), dataset)
    before = list(store.list_keys(""))
    recovered(config_of(store), dataset)
    assert list(store.list_keys("")) == before


def test_who_begins_a_run_that_another_process_began_a_moment_before_takes_up_that_one(
    store: LocalStore, dataset: DatasetManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[RunState] = []
    create = Manifest.create

    def create_after_another(manifest: Manifest, first: RunState) -> Generation:
        others.append(create(manifest, first).state)
        return create(manifest, first)

    monkeypatch.setattr(Manifest, "create", create_after_another)
    state, sentence = recovered(config_of(store), dataset)
    assert [state] == others
    assert sentence.startswith("The run goes on from step 0 of 100")
    assert Manifest(store, "run").load_head().generation == 1


def test_it_leaves_that_run_to_the_other_process_once_that_one_trains_it(
    store: LocalStore, dataset: DatasetManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Manifest.create

    def create_after_another(manifest: Manifest, first: RunState) -> Generation:
        create(manifest, first)
        manifest.commit("segment began", take_lease(parent_process(), 1))
        return create(manifest, first)

    monkeypatch.setattr(Manifest, "create", create_after_another)
    with pytest.raises(RunBusyError, match="is being trained by"):
        recovered(config_of(store), dataset)


def test_a_changed_configuration_is_told_and_in_the_manifest_before_anything_is_trained_with_it(
    store: LocalStore,
    dataset: DatasetManifest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recovered(config_of(store), dataset)
    manifest = Manifest(store, "run")
    kept = record_of(make_checkpoint(store, tmp_path / "files", 10, lease_run(manifest)))
    manifest.commit("promoted", promote(kept, RetentionPolicy(newest=2)))
    with caplog.at_level(logging.INFO, "holdfast"):
        state, sentence = recovered(config_of(store, steps=150), dataset)
    assert "train.steps: was 100, is 150 now" in caplog.text
    assert "step 10 of 150" in sentence
    assert (state.steps_total, RunConfig.model_validate(state.config).train.steps, state.lease) == (150, 150, None)
    assert manifest.load_head().state == state


def test_of_code_that_was_changed_before_the_first_step_the_file_is_named_and_what_can_be_done(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_optimizer(tmp_path)
    config = config_of(store, optimizer="factory", optimizer_factory=f"{file}:build")
    recovered(pin_code(config), dataset)
    file.write_text(file.read_text() + "# mended")
    with caplog.at_level(logging.INFO, "holdfast"):
        recovered(config, dataset)
    assert f"the file {file.name} was changed, its SHA-256 was " in caplog.text
    assert "restore the files, and start it under another name" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "holdfast"):
        recovered(config, dataset)
    assert "changed" not in caplog.text


def test_a_run_that_another_command_began_meanwhile_is_not_taken_over(
    store: LocalStore, dataset: DatasetManifest
) -> None:
    """While this one's data were prepared there was no such run, so nothing was compared then."""
    recovered(config_of(store), dataset)
    before = Manifest(store, "run").load_head()
    with pytest.raises(IncompatibleRunError, match=r"train\.seed: was \d+, is 7 now"):
        recovered(config_of(store, seed=7), dataset)
    other = dataset.model_copy(update={"digest": "e" * 64})
    with pytest.raises(IncompatibleRunError, match="another command began this run meanwhile"):
        recovered(config_of(store), other)
    assert Manifest(store, "run").load_head() == before


def test_fewer_steps_than_what_is_promoted_only_now_are_refused(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a task it would start a Prefect server.
    monkeypatch.setattr("tasks.recover.promote", promote_checkpoint)
    config = config_of(store)
    recovered(config, dataset)
    manifest = Manifest(store, "run")
    lease = take_lease(this_process().model_copy(update={"start_ticks": 1}), world_size=1)
    fence = manifest.commit("segment began", lease).state.lease.fence  # type: ignore[union-attr]
    make_checkpoint(store, tmp_path / "files", 50, fence)
    with pytest.raises(IncompatibleRunError, match=r"has already made 50 steps; train\.steps = 45 is below"):
        recovered(config_of(store, steps=45), dataset)
    assert manifest.load_head().state.steps_total == 100
