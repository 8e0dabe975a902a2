"""A run that was begun needs its source no more: it may be gone, and of one that is there only a listing is read."""

import inspect
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import DatasetManifest, dataset_key, dataset_sha256
from storage.errors import ConfigurationError, IncompatibleRunError
from storage.runs.run_state import RunState
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig
from tasks.data.progress import run_plainly
from tasks.data.sources.bucket import BucketFile
from tasks.data.sources.source_file import LocalFile, SourceFile
from tasks.prepare import prepare_data
from tasks.run_paths import open_run_paths
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import running_s3_server, upload_folder, use_s3
from tests.helpers.tiny_runs import write_tiny_configuration

prepare_work = inspect.unwrap(prepare_data)


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.prepare._run_part", run_plainly)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for index in range(3):
        write_parquet(tmp_path / "source" / f"part-{index}.parquet", text_columns(40, first=40 * index))
    return tmp_path / "source"


@pytest.fixture
def config(tmp_path: Path, source: Path) -> RunConfig:
    return load_configuration(write_tiny_configuration(tmp_path, "run", tmp_path / "store", source))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files of a source that are opened, in whatever way."""
    names: list[str] = []
    for kind in (LocalFile, BucketFile):
        for method in ("open", "stream"):
            _note(monkeypatch, kind, method, names)
    return names


def _note(monkeypatch: pytest.MonkeyPatch, kind: type[SourceFile], method: str, names: list[str]) -> None:
    real = getattr(kind, method)

    def opened(file: SourceFile) -> Any:
        names.append(file.name)
        return real(file)

    monkeypatch.setattr(kind, method, opened)


def begin(config: RunConfig) -> DatasetManifest:
    """Prepare the data, and begin the run."""
    dataset: DatasetManifest = prepare_work(config)[0]
    state = RunState(
        run=config.run,
        created_at=1.0,
        config=config.model_dump(mode="json"),
        dataset_digest=dataset.digest,
        dataset_sha256=dataset_sha256(open_run_paths(config).store, dataset.digest),
        steps_total=config.train.steps,
    )
    open_run_paths(config).manifest.create(state)
    return dataset


def elsewhere(config: RunConfig, tmp_path: Path) -> RunConfig:
    """The same on a machine that has never seen any of it."""
    return config.model_copy(update={"scratch": str(tmp_path / "other machine")})


def settle(source: Path) -> None:
    """Let the files be older than what may still change unseen."""
    for path in source.iterdir():
        os.utime(path, (1.7e9, 1.7e9))


def test_of_files_that_are_as_they_were_another_machine_reads_nothing(
    config: RunConfig, source: Path, tmp_path: Path, read: list[str]
) -> None:
    settle(source)
    dataset = begin(config)
    assert set(read) == {"part-0.parquet", "part-1.parquet", "part-2.parquet"}
    read.clear()
    assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    assert read == []


def test_damaged_identities_are_not_believed(config: RunConfig, source: Path, tmp_path: Path, read: list[str]) -> None:
    settle(source)
    dataset = begin(config)
    kept = tmp_path / "store" / "sources" / f"{dataset.digest}.json"
    before = kept.read_text()
    kept.write_text(before.replace("part-1", "part-7"))
    read.clear()
    assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    assert set(read) == {"part-0.parquet", "part-1.parquet", "part-2.parquet"}
    assert kept.read_text() == before


def test_only_files_that_look_changed_are_hashed_and_a_real_change_is_refused(
    config: RunConfig, source: Path, tmp_path: Path, read: list[str]
) -> None:
    settle(source)
    dataset = begin(config)
    read.clear()
    (source / "part-1.parquet").touch()
    assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    assert read == ["part-1.parquet"]
    write_parquet(source / "part-2.parquet", text_columns(41, first=80))
    with pytest.raises(IncompatibleRunError, match=r"part-2\.parquet: content changed"):
        prepare_work(elsewhere(config, tmp_path))


def test_a_file_whose_times_were_put_back_is_still_noticed_where_it_was_seen_before(
    config: RunConfig, source: Path, tmp_path: Path
) -> None:
    settle(source)
    begin(config)
    size = (source / "part-0.parquet").stat().st_size
    (source / "part-0.parquet").write_bytes((source / "part-1.parquet").read_bytes()[:size].ljust(size, b"0"))
    settle(source)
    with pytest.raises(IncompatibleRunError, match=r"part-0\.parquet: content changed"):
        prepare_work(config)


def test_a_source_that_is_gone_ends_no_run(
    config: RunConfig, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = begin(config)
    source.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    assert "The source cannot be read, so whether it was changed is not known" in caplog.text
    assert f"its data set {dataset.digest[:12]} is in the store" in caplog.text
    open_run_paths(config).store.delete(dataset_key(dataset.digest, "dataset.json"))
    with pytest.raises(ConfigurationError, match="does not exist"):
        prepare_work(elsewhere(config, tmp_path))


def test_a_source_that_may_not_be_entered_ends_no_run(
    config: RunConfig, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = begin(config)
    real = os.scandir

    def closed(path: Any) -> Any:
        if Path(path) == source:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    assert f"cannot look at {source}: Permission denied" in caplog.text


def test_a_bucket_that_cannot_be_reached_ends_no_run(
    config: RunConfig, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    with running_s3_server() as endpoint:
        use_s3(monkeypatch, endpoint)
        config = config.model_copy(update={"data": config.data.model_copy(update={"source": upload_folder(source)})})
        dataset = begin(config)
        read.clear()
        assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
        assert read == []
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert prepare_work(elsewhere(config, tmp_path))[0] == dataset


def test_a_changed_file_of_a_splits_own_source_is_refused_and_named(
    tmp_path: Path, source: Path, config: RunConfig
) -> None:
    own = write_parquet(tmp_path / "own" / "a.parquet", text_columns(30, first=200))
    path = tmp_path / "run.toml"
    path.write_text(f'{path.read_text()}\n[data.split]\nvalidation_source = "own"\n')
    config = load_configuration(path)
    assert config.data.split.validation_source == str(own.parent)
    dataset = begin(config)
    assert prepare_work(elsewhere(config, tmp_path))[0] == dataset
    write_parquet(own, text_columns(31, first=200))
    with pytest.raises(IncompatibleRunError, match=r"file validation_source/a\.parquet: content changed"):
        prepare_work(config)
