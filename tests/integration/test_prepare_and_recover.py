"""The work of the tasks `prepare` and `recover`: what a run begins with or goes on from, and what is refused first."""

import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.datasets import DatasetManifest, dataset_key, find_dataset
from storage.errors import IncompatibleRunError, RunBusyError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.run_state import Holder, RunState
from storage.runs.transitions import take_lease
from tasks.config.changes import as_begun
from tasks.config.load import change_values, configure, load_configuration
from tasks.configuration.run import RunConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.pipeline import prepare_dataset
from tasks.prepare import prepare_data
from tasks.recover import recover
from tasks.recovery import settle
from tasks.run_paths import open_run_paths
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.runs import make_checkpoint
from tests.helpers.tiny_runs import write_tiny_configuration

prepare_work, recover_work = inspect.unwrap(prepare_data), inspect.unwrap(recover)
STEPS = 4
# A process that says who it is, and lives until its standard input is closed.
HOLDER = "from storage.runs.holders import this_process; print(this_process().model_dump_json(), flush=True); input()"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_parquet(folder / "part-0.parquet", text_columns(120))
    return folder


@pytest.fixture
def config(tmp_path: Path, source: Path) -> RunConfig:
    return load_configuration(write_tiny_configuration(tmp_path, "run", tmp_path / "store", source))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, source: Path) -> tuple[Path, DatasetManifest]:
    """A store with the data set, prepared as the task does it, outside of Prefect."""
    folder = tmp_path_factory.mktemp("prepared")
    config = load_configuration(write_tiny_configuration(folder, "run", folder / "store", source))
    run_paths = open_run_paths(config)
    return folder / "store", prepare_dataset(config.data, run_paths.store, run_paths.data_scratch)


@pytest.fixture
def dataset(config: RunConfig, prepared: tuple[Path, DatasetManifest]) -> DatasetManifest:
    """The data set, in the store of this test as well."""
    store, dataset = prepared
    shutil.copytree(store / "datasets", Path(config.store) / "datasets")
    return dataset


def changed(config: RunConfig, *assignments: str) -> RunConfig:
    return configure(RunConfig, change_values(config.model_dump(mode="json"), list(assignments)), "configuration")


def store_of(config: RunConfig) -> LocalStore:
    return LocalStore(Path(config.store))


def state_of(config: RunConfig) -> RunState:
    return Manifest(store_of(config), config.run).load_head().state


@contextmanager
def living_process() -> Iterator[Holder]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Holder.model_validate_json(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


def take_lease_for(config: RunConfig, holder: Holder) -> int:
    lease = Manifest(store_of(config), config.run).commit("began", take_lease(holder, world_size=1)).state.lease
    assert lease is not None
    return lease.fence


def test_a_data_set_keeps_what_great_expectations_found_in_a_file_that_its_manifest_names(
    config: RunConfig, dataset: DatasetManifest
) -> None:
    store = store_of(config)
    result = find_contract_result(store, dataset)
    assert result is not None and dataset.contract is not None
    assert (result["rows"], result["measures"]["rows"]) == (120, 120)
    assert "expect_column_values_to_be_between" in {found["type"] for found in result["results"]}
    path = store.root / dataset_key(dataset.digest, dataset.contract.name)
    assert sha256_of_file(path) == dataset.contract.sha256


def test_a_new_run_begins_at_step_0_with_its_configuration(config: RunConfig, dataset: DatasetManifest) -> None:
    state, sentence = recover_work(config, dataset)
    assert state == state_of(config)
    assert (state.promoted, state.steps_total, state.dataset_digest) == (None, STEPS, dataset.digest)
    assert state.config == as_begun(config, None).model_dump(mode="json")
    assert sentence == "A new run: it begins at step 0."


def test_a_run_that_is_taken_up_unchanged_is_not_written_to(config: RunConfig, dataset: DatasetManifest) -> None:
    recover_work(config, dataset)
    head = Manifest(store_of(config), config.run).load_head()
    assert recover_work(config, dataset)[1] == f"The run goes on from step 0 of {STEPS}."
    assert Manifest(store_of(config), config.run).load_head() == head


def test_a_changed_configuration_is_in_the_manifest_before_anything_is_trained_with_it(
    config: RunConfig, dataset: DatasetManifest
) -> None:
    recover_work(config, dataset)
    longer = changed(config, "train.steps=9", "checkpoint.every_steps=3")
    state, _ = recover_work(longer, dataset)
    assert state == state_of(config)
    assert (state.steps_total, state.config) == (9, as_begun(longer, state).model_dump(mode="json"))


def test_a_segment_whose_process_died_is_settled_as_lost_without_what_was_not_complete(
    config: RunConfig, dataset: DatasetManifest, tmp_path: Path
) -> None:
    recover_work(config, dataset)
    with living_process() as holder:
        fence = take_lease_for(config, holder)
    store = store_of(config)
    store.delete(f"{make_checkpoint(store, tmp_path / 'files', 2, fence).path}/index.json")
    state, sentence = recover_work(config, dataset)
    assert [(segment.fence, segment.outcome) for segment in state.segments] == [(fence, "lost")]
    assert (state.lease, state.promoted) == (None, None)
    assert sentence == f"The run goes on from step 0 of {STEPS}."


def test_a_run_that_a_living_process_trains_is_neither_prepared_nor_taken_up(
    config: RunConfig, dataset: DatasetManifest
) -> None:
    recover_work(config, dataset)
    with living_process() as holder:
        take_lease_for(config, holder)
        before = Manifest(store_of(config), config.run).load_head()
        for work, arguments in ((prepare_work, [config]), (recover_work, [config, dataset])):
            with pytest.raises(RunBusyError, match=f"is being trained by process {holder.pid}"):
                work(*arguments)
        assert Manifest(store_of(config), config.run).load_head() == before


def test_a_holder_on_another_machine_is_waited_for_once(
    config: RunConfig, dataset: DatasetManifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settle, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(settle, "WATCH_SECONDS", 0.01)
    recover_work(config, dataset)
    fence = take_lease_for(config, Holder(host="another-host", pid_scope="another boot", pid=1, start_ticks=1))
    prepare_work(config)
    assert recover_work(config, dataset)[0].segments[-1].fence == fence
    assert caplog.text.count("held by a process on another-host") == 1


def test_an_earlier_attempt_of_the_same_process_holds_nothing_up(config: RunConfig, dataset: DatasetManifest) -> None:
    recover_work(config, dataset)
    fence = take_lease_for(config, this_process())
    assert recover_work(config, dataset)[0].segments[-1].fence == fence


def test_a_changed_source_is_refused_before_a_data_set_is_made_of_it(
    config: RunConfig, dataset: DatasetManifest, tmp_path: Path
) -> None:
    recover_work(config, dataset)
    write_parquet(tmp_path / "other" / "part-0.parquet", text_columns(121))
    with pytest.raises(IncompatibleRunError, match=r"part-0\.parquet"):
        prepare_work(changed(config, f"data.source={tmp_path / 'other'}"))
    assert find_dataset(store_of(config), dataset.digest) == dataset
    assert len(list((store_of(config).root / "datasets").iterdir())) == 1
