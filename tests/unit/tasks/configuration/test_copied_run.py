"""A run's folder that was copied under another name is refused by what trains, before anything of it is touched."""

import inspect
import shutil
from pathlib import Path

import pytest

from flows.resume import load_run_configuration
from storage.errors import IncompatibleRunError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig, RunConfig
from tasks.prepare import prepare_data
from tasks.segment import train_segment
from tests.helpers.kept_runs import make_kept_run


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store with the run `run`, at rest, and its folder once more under the name `copy`."""
    store = LocalStore(tmp_path / "store")
    make_kept_run(store, tmp_path)
    shutil.copytree(store.root / "runs/run", store.root / "runs/copy")
    return store


def test_neither_run_nor_resume_nor_a_segment_goes_on_with_it(store: LocalStore) -> None:
    data = DataConfig(source="nowhere", text="t", label="l", kind="binary")
    config = RunConfig(run="copy", store=store.address, data=data)
    before = list(store.list_keys(""))
    with pytest.raises(IncompatibleRunError, match="holds the manifest of run 'run', not of 'copy'"):
        inspect.unwrap(prepare_data)(config)
    with pytest.raises(IncompatibleRunError, match="copied or renamed"):
        inspect.unwrap(train_segment)(config)
    with pytest.raises(IncompatibleRunError, match="copied or renamed"):
        load_run_configuration(store.address, "copy", {})
    assert list(store.list_keys("")) == before
