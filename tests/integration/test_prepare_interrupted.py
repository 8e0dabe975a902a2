"""A preparation that fails, dies or loses its source under way leaves nothing that a reader could take for whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import DatasetManifest, dataset_key, find_dataset
from storage.errors import ContractError, StoreError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.units.staging import ABANDONED_SECONDS
from tasks.data.units.working_folders import folder_needed_again, working_folder
from tests.helpers.parquet import text_columns, text_config, write_parquet, write_table

METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data") / "part-0.parquet", text_columns(900))


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, DatasetManifest]:
    """The data set of a preparation that nothing disturbs, and the store that it is in."""
    root = tmp_path_factory.mktemp("store")
    store = LocalStore(root / "store")
    return store, prepare_dataset(text_config(source, **METADATA), store, root / "scratch")


class FailingStore(LocalStore):
    """A store whose n-th file cannot be put."""

    def __init__(self, root: Path, fail: Callable[[], None], at: int) -> None:
        super().__init__(root)
        self.fail, self.at, self.num_put = fail, at, 0

    def put_file(self, source: Path, key: str) -> None:
        self.num_put += 1
        if self.num_put == self.at:
            self.fail()
        super().put_file(source, key)


def fail_as_full() -> None:
    raise StoreError("the store is full")


def test_a_failure_under_way_leaves_nothing_visible_and_the_next_attempt_makes_the_same_data_set(
    prepared: tuple[LocalStore, DatasetManifest], source: Path, tmp_path: Path
) -> None:
    config, scratch = text_config(source, **METADATA), tmp_path / "scratch"
    store = FailingStore(tmp_path / "store", fail_as_full, at=4)
    with pytest.raises(StoreError, match="full"):
        prepare_dataset(config, store, scratch)
    assert store.num_put == 4
    assert find_dataset(store, prepared[1].digest) is None
    assert [path.name for path in scratch.iterdir()] == ["fingerprints.json"]
    # What was left is damaged as well, and one file is from nowhere: none of it may show in the data set.
    left = sorted(store.list_keys(dataset_key(prepared[1].digest)))
    assert len(left) == 3
    store.write(left[1], b"half a shard")
    store.write(dataset_key(prepared[1].digest, "train-99999.parquet"), b"an old shard")
    assert prepare_dataset(config, store, scratch) == prepared[1]
    for shard in (shard for split in prepared[1].splits.values() for shard in split.shards):
        assert sha256_of_file(store.fetch(dataset_key(prepared[1].digest, shard.name))) == shard.sha256
    assert set(store.list_keys("datasets/")) == set(prepared[0].list_keys("datasets/"))


def prepare_and_die(config: str, store: str, scratch: str) -> None:
    """Run in a process of its own: it is killed without warning while it puts the third shard."""
    dying = FailingStore(Path(store), lambda: os.kill(os.getpid(), signal.SIGKILL), at=3)
    prepare_dataset(DataConfig.model_validate_json(config), dying, Path(scratch))


def test_a_killed_preparation_leaves_nothing_visible_and_its_working_files_are_removed(
    prepared: tuple[LocalStore, DatasetManifest], source: Path, tmp_path: Path
) -> None:
    config, scratch, store = text_config(source, **METADATA), tmp_path / "scratch", LocalStore(tmp_path / "store")
    code = "import sys; from tests.integration import test_prepare_interrupted as t; t.prepare_and_die(*sys.argv[1:])"
    command = [sys.executable, "-c", code, config.model_dump_json(), store.address, str(scratch)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(list(store.list_keys("datasets/"))) == 2
    assert find_dataset(store, prepared[1].digest) is None
    assert list(scratch.glob("prepare-*/"))
    assert prepare_dataset(config, store, scratch) == prepared[1]
    assert [path.name for path in scratch.iterdir()] == ["fingerprints.json"]


def read_and_die(config: str, store: str, scratch: str) -> None:
    """Run in a process of its own: it is killed without warning when it has read the first of two files."""

    def die(phase: str, _share: float) -> None:
        if phase == "read":
            os.kill(os.getpid(), signal.SIGKILL)

    prepare_dataset(DataConfig.model_validate_json(config), LocalStore(Path(store)), Path(scratch), die)


def test_files_that_a_killed_preparation_had_read_are_removed_and_read_again(tmp_path: Path) -> None:
    for part in range(2):
        write_table(tmp_path / "data" / f"{part}.csv", text_columns(200, first=200 * part))
    config, scratch, store = text_config(tmp_path / "data"), tmp_path / "scratch", LocalStore(tmp_path / "store")
    code = "import sys; from tests.integration import test_prepare_interrupted as t; t.read_and_die(*sys.argv[1:])"
    command = [sys.executable, "-c", code, config.model_dump_json(), store.address, str(scratch)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = scratch.glob("prepare-*/units/*.parquet")
    assert left.stat().st_size > 0 and not list(store.list_keys("datasets/"))
    undisturbed = prepare_dataset(config, LocalStore(tmp_path / "other"), tmp_path / "other scratch")
    assert prepare_dataset(config, store, scratch) == undisturbed
    assert [path.name for path in scratch.iterdir()] == ["fingerprints.json"]


def test_working_files_of_a_living_preparation_are_left_alone(tmp_path: Path) -> None:
    with working_folder(tmp_path) as first:
        (first / "shard").write_bytes(b"x")
        with working_folder(tmp_path) as second:
            assert second != first
            assert (first / "shard").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_has_gone_on_with_is_removed_from_this_machine_too(tmp_path: Path) -> None:
    forgotten, recent = (folder_needed_again(tmp_path, staging) for staging in ("a" * 64, "b" * 64))
    for folder in (forgotten, recent):
        folder.mkdir()
        (folder / "rows").write_bytes(b"x")
    long_ago = time.time() - ABANDONED_SECONDS - 60
    os.utime(forgotten, (long_ago, long_ago))
    with working_folder(tmp_path):
        assert recent.exists() and not forgotten.exists()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_source_that_changes_under_way_is_not_published(tmp_path: Path, kind: str) -> None:
    source = write_table(tmp_path / f"a.{kind}", text_columns(200))
    store = LocalStore(tmp_path / "store")

    def touch(phase: str, _share: float) -> None:
        if phase == "shard":
            os.utime(source)

    with pytest.raises(ContractError, match="changed while it was being prepared"):
        prepare_dataset(text_config(source), store, tmp_path / "scratch", touch)
    assert not any(key.endswith("dataset.json") for key in store.list_keys(""))


@pytest.mark.parametrize("after", [pytest.param("fingerprint", marks=pytest.mark.slow), "check"])
@pytest.mark.parametrize("become", ["shorter", "another"])
def test_whatever_a_source_that_changes_leads_to_is_called_that(tmp_path: Path, after: str, become: str) -> None:
    source = write_table(tmp_path / "a.parquet", text_columns(200))

    def change(phase: str, share: float) -> None:
        if (phase, share) == (after, 1.0):
            if become == "shorter":
                os.truncate(source, source.stat().st_size // 2)
            else:
                write_table(source, text_columns(150))

    with pytest.raises(ContractError, match=r"a\.parquet was changed while it was being prepared"):
        prepare_dataset(text_config(source), LocalStore(tmp_path / "store"), tmp_path / "scratch", change)
