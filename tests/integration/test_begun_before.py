"""A run keeps the order of its classes, what identifies a row and how leaves are padded, though defaults changed."""

import inspect
import logging
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage.datasets import DatasetManifest, dataset_key, dataset_sha256
from storage.errors import IncompatibleRunError
from storage.objects.digests import digest_of, sha256_of_file
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.configuration import DataConfig, RunConfig
from tasks.data.identity.fingerprints import INPUTS_FORMAT
from tasks.data.pipeline import prepare_dataset
from tasks.data.progress import run_plainly
from tasks.data.sources.columns import inspect_files, samples_sql
from tasks.data.sources.files import find_files
from tasks.places import open_places
from tasks.prepare import prepare_data
from tasks.recover import recover
from tasks.running.launch import hold_lease, make_specification
from tasks.settings.reading import change_values, configure, load_configuration
from tests.helpers.parquet import read_split, text_columns, text_config, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration
from training.batches.leaves import leaf_cut
from training.configuration import PADDING_EFFICIENCY
from training.specification import SegmentSpec

prepare_work, recover_work = inspect.unwrap(prepare_data), inspect.unwrap(recover)
AS_TEXT, NATURALLY = ["level 1", "level 10", "level 2"], ["level 1", "level 2", "level 10"]
# What the version before wrote for what its user did not name, and what it did not know.
BEFORE: dict[str, Any] = {"id": "sample_id", "class_order": "text", "boolean_labels": "numbers"}


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.prepare._run_part", run_plainly)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Of a file that names neither; its labels have two orders."""
    write_parquet(tmp_path / "source" / "a.parquet", {**text_columns(120), "domain": NATURALLY * 40})
    path = write_tiny_configuration(tmp_path, "run", tmp_path / "store", tmp_path / "source")
    path.write_text(path.read_text().replace('id = "sample_id"\n', ""))
    return load_configuration(path)


@pytest.fixture
def dataset(config: RunConfig) -> DatasetManifest:
    """As the version before prepared it."""
    return prepared(config.data.model_copy(update=BEFORE), config)


@pytest.fixture
def run(config: RunConfig, dataset: DatasetManifest) -> Manifest:
    """The run as the version before wrote it down."""
    return begun(config, dataset)


def begun(config: RunConfig, dataset: DatasetManifest) -> Manifest:
    places = open_places(config)
    stored = config.model_dump(mode="json")
    stored["data"] = data_of_before(config)
    del stored["train"]["padding_efficiency"]
    stored["train"]["prefetch_steps"] = 4  # nothing reads it any more
    places.manifest.create(
        RunState(
            run="run",
            created_at=1.0,
            config=stored,
            dataset_digest=dataset.digest,
            dataset_sha256=dataset_sha256(places.store, dataset.digest),
            steps_total=config.train.steps,
        )
    )
    return places.manifest


def data_of_before(config: RunConfig) -> dict[str, Any]:
    values = config.data.model_dump(mode="json") | {"id": "sample_id"}
    del values["class_order"], values["boolean_labels"]
    return values


def prepared(data: DataConfig, config: RunConfig) -> DatasetManifest:
    places = open_places(config)
    return prepare_dataset(data, places.store, places.data_scratch)


def store_of(config: RunConfig) -> LocalStore:
    return LocalStore(Path(config.store))


def changed(config: RunConfig, *assignments: str) -> RunConfig:
    values = config.model_dump(mode="json", exclude_unset=True)
    return configure(RunConfig, change_values(values, list(assignments)), "configuration")


def num_datasets(config: RunConfig) -> int:
    return len(list((store_of(config).root / "datasets").iterdir()))


def test_a_data_set_of_the_version_before_is_found_under_the_digest_that_it_had(
    config: RunConfig, dataset: DatasetManifest
) -> None:
    (file,) = find_files(config.data.source)
    data = {name: value for name, value in data_of_before(config).items() if name not in ("source", "memory_limit")}
    files = [{"name": file.name, "sha256": sha256_of_file(Path(file.place))}]
    assert dataset.digest == digest_of({"format": INPUTS_FORMAT, "files": files, "data": data})
    assert dataset.target.classes == AS_TEXT


def test_a_run_that_was_begun_before_goes_on_with_its_data_set_its_order_and_its_column(
    config: RunConfig, dataset: DatasetManifest, run: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        for _ in range(2):
            assert prepare_work(config)[0] == dataset
            state, _ = recover_work(config, dataset)
    assert "data.id is not set: the run keeps the column 'sample_id', with which it was begun." in caplog.text
    assert "Configuration changed" not in caplog.text
    assert (state.dataset_digest, state.config["data"]["id"]) == (dataset.digest, "sample_id")
    assert state.config["data"]["class_order"] == "text"
    assert num_datasets(config) == 1 and run.load_head().generation == 2


def test_its_data_set_is_prepared_again_to_the_same_bytes_if_it_was_lost(
    config: RunConfig, dataset: DatasetManifest, run: Manifest
) -> None:
    store_of(config).delete(dataset_key(dataset.digest, "dataset.json"))
    assert prepare_work(config)[0] == dataset
    recover_work(config, dataset)  # refuses another one than the run was begun with


@pytest.mark.parametrize("assignment", ["data.id=text_id", "data.class_order=natural"])
def test_another_column_or_order_than_it_was_begun_with_is_refused(
    config: RunConfig, run: Manifest, assignment: str
) -> None:
    source = Path(config.data.source) / "a.parquet"
    write_parquet(source, {**text_columns(120), "text_id": list(range(120)), "domain": NATURALLY * 40})
    with pytest.raises(IncompatibleRunError, match=rf"{assignment.partition('=')[0]}: was '(sample_id|text)', is"):
        prepare_work(changed(config, assignment))


def test_a_new_run_has_its_classes_in_natural_order_and_its_rows_numbered_and_keeps_both(
    config: RunConfig, run: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    new = changed(config, "run=new")
    with caplog.at_level(logging.INFO, "holdfast"):
        dataset, _ = prepare_work(new)
        state, _ = recover_work(new, dataset)
        assert prepare_work(new)[0] == dataset
    assert dataset.target.classes == NATURALLY
    assert dataset.digest == digest_of(dataset.inputs) and dataset.inputs["class_order"] == "natural"
    assert set(read_split(store_of(config), dataset, "train")["id"].to_pylist()) <= {f"0:{row}" for row in range(120)}
    assert caplog.text.count("data.id is not set: a row's id is its file and its row number.") == 1
    assert recover_work(new, dataset)[0] == state
    assert num_datasets(config) == 2


@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_a_run_whose_booleans_are_numbers_goes_on_with_them_and_a_new_one_has_words(
    config: RunConfig, kind: str
) -> None:
    columns = {**text_columns(120), "domain": [True, False] * 60}
    write_parquet(Path(config.data.source) / "a.parquet", columns)
    config = changed(config, f"data.kind={kind}")
    dataset = prepared(config.data.model_copy(update=BEFORE), config)
    assert dataset.target.classes == ["0", "1"] and "boolean_labels" not in dataset.inputs
    begun(config, dataset)
    assert prepare_work(config)[0] == dataset
    state, _ = recover_work(config, dataset)
    assert state.config["data"]["boolean_labels"] == "numbers"
    with pytest.raises(IncompatibleRunError, match=r"data\.boolean_labels: was 'numbers', is 'words' now"):
        prepare_work(changed(config, "data.boolean_labels=words"))
    new = changed(config, "run=new", "data.id=sample_id")
    words, _ = prepare_work(new)
    assert words.target.classes == ["false", "true"] and words.inputs["boolean_labels"] == "words"
    assert words.digest == digest_of(words.inputs) and recover_work(new, words)[0].config["data"]["kind"] == kind
    assert prepare_work(new)[0] == words and num_datasets(config) == 2
    store_of(config).delete(dataset_key(words.digest, "dataset.json"))
    assert prepare_work(new)[0] == words


def test_a_run_keeps_the_names_of_its_classes_and_takes_no_others(config: RunConfig) -> None:
    write_parquet(Path(config.data.source) / "a.parquet", {**text_columns(120), "domain": [0, 1, 2] * 40})
    named = changed(config, 'data.class_names=["world", "sports", "business"]')
    dataset, _ = prepare_work(named)
    state, _ = recover_work(named, dataset)
    assert prepare_work(named)[0] == dataset == prepare_work(config)[0]  # where the file says nothing any more
    assert recover_work(config, dataset)[0] == state
    with pytest.raises(IncompatibleRunError, match=r"data\.class_names: was \['world'"):
        prepare_work(changed(config, 'data.class_names=["a", "b", "c"]'))


def test_a_run_goes_on_with_the_split_that_it_was_given_and_with_no_other(config: RunConfig) -> None:
    source = Path(config.data.source) / "a.parquet"
    parts = ["train"] * 80 + ["dev", "test"] * 20
    write_parquet(source, {**text_columns(120), "domain": NATURALLY * 40, "part": parts})
    given = configure(
        RunConfig, config.model_dump(mode="json") | {"run": "given", "data": data_given(config)}, "configuration"
    )
    dataset, _ = prepare_work(given)
    assert {name: split.num_rows for name, split in dataset.splits.items()} == {
        "train": 80,
        "validation": 20,
        "test": 20,
    }
    state, _ = recover_work(given, dataset)
    assert prepare_work(given)[0] == dataset and recover_work(given, dataset)[0] == state
    with pytest.raises(IncompatibleRunError) as caught:
        prepare_work(changed(given, 'data.split={by = "id"}'))
    assert "data.split.by: was 'given', is 'id' now" in str(caught.value)
    assert "data.split.column: was 'part', is not set now" in str(caught.value)


def data_given(config: RunConfig) -> dict[str, Any]:
    return config.data.model_dump(mode="json") | {"split": {"by": "given", "column": "part"}}


def specification(config: RunConfig) -> SegmentSpec:
    """What the ranks of the run's next segment are told."""
    places = open_places(config)
    return make_specification(config, places, hold_lease(config, places, "train").state)


def test_a_run_that_was_begun_before_keeps_leaves_of_one_group(
    config: RunConfig, dataset: DatasetManifest, run: Manifest
) -> None:
    prepare_work(config)
    state, _ = recover_work(config, dataset)
    assert state.config["train"]["padding_efficiency"] == 0
    assert config.train.padding_efficiency is None  # what the flow goes on with says nothing
    train = specification(config).train
    assert train.padding_efficiency == 0
    assert not leaf_cut(config.model, train).padding_efficiency


def test_a_new_run_has_leaves_in_groups_and_keeps_them(config: RunConfig, run: Manifest) -> None:
    new = changed(config, "run=new")
    dataset, _ = prepare_work(new)
    state, _ = recover_work(new, dataset)
    assert state.config["train"]["padding_efficiency"] == PADDING_EFFICIENCY == 0.97
    assert specification(new).train.padding_efficiency == PADDING_EFFICIENCY


@pytest.mark.parametrize("efficiency", [0.97, 0.5])
def test_how_leaves_are_padded_cannot_be_changed_for_a_run_that_was_begun_before(
    config: RunConfig, run: Manifest, efficiency: float
) -> None:
    with pytest.raises(IncompatibleRunError, match=rf"train\.padding_efficiency: was 0\.0, is {efficiency} now"):
        prepare_work(changed(config, f"train.padding_efficiency={efficiency}"))
    assert prepare_work(changed(config, "train.padding_efficiency=0"))


def test_labels_that_have_one_order_by_either_rule_are_not_prepared_again(config: RunConfig) -> None:
    write_parquet(Path(config.data.source) / "a.parquet", text_columns(120))
    before = prepared(config.data.model_copy(update=BEFORE), config)
    new = changed(config, "run=new", "data.id=sample_id")
    assert prepare_work(new)[0] == before
    recover_work(new, before)
    assert prepare_work(new)[0] == before
    assert num_datasets(config) == 1
    store_of(config).delete(dataset_key(before.digest, "dataset.json"))
    assert prepare_work(new)[0] == before


def test_the_number_of_a_row_depends_on_the_order_of_files_and_rows_alone(tmp_path: Path) -> None:
    columns = text_columns(3000)
    half = {name: values[:1500] for name, values in columns.items()}, {n: v[1500:] for n, v in columns.items()}
    for folder, names, row_group_rows, threads in (("one", "ab", 1500, 1), ("far/other", "xy", 7, 4)):
        for name, part in zip(names, half, strict=True):
            write_parquet(tmp_path / folder / f"{name}.parquet", part, row_group_rows)
        config = text_config(tmp_path / folder, id=None)
        table = inspect_files(find_files(config.source), config)
        with duckdb.connect() as connection:
            connection.execute(f"SET threads = {threads}")
            found = connection.execute(f"SELECT text, id FROM ({samples_sql(table, config)})").fetchall()
        expected = {text: f"{row // 1500}:{row % 1500}" for row, text in enumerate(columns["text"])}
        assert dict(found) == expected and len(found) == 3000
