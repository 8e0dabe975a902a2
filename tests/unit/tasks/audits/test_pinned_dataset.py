"""A run reads the data set that it was begun with, to the byte, or is refused before anything is done."""

import inspect
from pathlib import Path

import pytest

from storage.datasets import DatasetManifest, dataset_sha256
from storage.errors import IncompatibleRunError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.transitions import take_lease
from tasks.audits.verdict import audit_run
from tasks.configuration.run import DataConfig, RunConfig
from tasks.recover import recover
from tasks.run_paths import open_run_paths
from tasks.supervision.launch import specify_segment
from tests.helpers.datasets import publish_anew, publish_small_dataset
from tests.helpers.kept_runs import make_kept_run
from training.configuration import TrainConfig


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "data")


@pytest.fixture
def config(store: LocalStore) -> RunConfig:
    data, train = DataConfig(text="t", label="l", kind="multiclass"), TrainConfig(steps=1000)
    return RunConfig(run="run", store=store.address, data=data, train=train)


def make_again(store: LocalStore, dataset: DatasetManifest) -> None:
    """What a preparation of the same source by other libraries leaves, where dataset.json was deleted before."""
    publish_anew(store, dataset.model_copy(update={"versions": {"tokenizers": "99.0"}}))


def test_a_new_run_is_refused_once_its_data_set_was_made_again_to_other_bytes(
    store: LocalStore, dataset: DatasetManifest, config: RunConfig
) -> None:
    inspect.unwrap(recover)(config, dataset)
    before = Manifest(store, "run").load_head()
    assert before.state.dataset_sha256 == dataset_sha256(store, dataset.digest)
    leased = take_lease(this_process(), world_size=1)(before.state, 2)
    assert specify_segment(config, open_run_paths(config), leased).dataset_sha256 == before.state.dataset_sha256
    inspect.unwrap(recover)(config, dataset)
    make_again(store, dataset)
    with pytest.raises(IncompatibleRunError, match=r"not the one that the run was begun with.*tokenizers 99\.0"):
        inspect.unwrap(recover)(config, dataset)
    assert Manifest(store, "run").load_head() == before


def test_an_audit_is_not_made_with_another_data_set(store: LocalStore, config: RunConfig, tmp_path: Path) -> None:
    manifest, stored = make_kept_run(store, tmp_path), config.model_dump(mode="json")
    manifest.commit("pinned", lambda state, _: state.model_copy(update={"config": stored, "dataset_sha256": "0" * 64}))
    with pytest.raises(IncompatibleRunError, match="is not the one that the run was begun with"):
        audit_run(store, "run")
