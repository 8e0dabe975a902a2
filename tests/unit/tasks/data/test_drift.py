"""Drift: measured from the data of the run that a new run begins with, validated, and no part of the data set."""

from pathlib import Path
from typing import Any

import pytest

from storage.datasets import dataset_sha256
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.configuration.run import DataConfig, RunConfig
from tasks.data.contract.result import describe_unmet, find_contract_result
from tasks.data.expectations.drift import Described, describe_dataset
from tasks.data.expectations.origin import find_reference
from tasks.data.pipeline import prepare_dataset
from tests.helpers.parquet import text_columns, text_config, write_parquet

METADATA: dict[str, Any] = {"numeric": ["length"], "categorical": ["region"]}


def prepare(config: DataConfig, folder: Path, reference: Described | None = None) -> tuple[Any, dict[str, Any]]:
    found: list[dict[str, Any] | None] = []
    store = LocalStore(folder / "store")
    dataset = prepare_dataset(config, store, folder / "scratch", reference=reference, on_contract=found.append)
    assert found[0] is not None
    return dataset, found[0]


def changed_columns() -> dict[str, Any]:
    """Fewer rows, none of one class, longer texts, and another region."""
    kept = [i for i, label in enumerate(text_columns(300)["domain"]) if label != "work"]
    columns = {name: [list(values)[i] for i in kept] for name, values in text_columns(300).items()}
    columns["text"] = [text * 3 for text in columns["text"]]
    columns["length"] = [None if value.as_py() is None else value.as_py() + 400 for value in columns["length"]]
    columns["region"] = ["north" if i % 3 == 0 else value.as_py() for i, value in enumerate(columns["region"])]
    del columns["score"]
    return columns


def test_what_changed_is_measured_said_and_not_kept_with_the_data_set(tmp_path: Path) -> None:
    first = text_config(write_parquet(tmp_path / "a.parquet", text_columns(300)), **METADATA)
    dataset, contract = prepare(first, tmp_path)
    reference = describe_dataset(dataset, contract["measures"])
    config = text_config(write_parquet(tmp_path / "b.parquet", changed_columns()), **METADATA)
    other, shown = prepare(config, tmp_path, reference)
    drift = {found["of"]: found for found in shown["results"] if found["of"].startswith("drift.")}
    assert drift["drift.rows"]["met"] and drift["drift.rows"]["found"] == "200 rows, there 300"
    assert "'work' 0.0%, there 33.3%" in drift["drift.labels"]["found"] and not drift["drift.labels"]["met"]
    assert drift["drift.missing_share.length"]["met"] and drift["drift.missing_share.length"]["found"].endswith(
        "there 9.3%"
    )
    assert drift["drift.new_categories.region"]["found"] == "1 of 6 values: 'north'"
    assert [name for name, found in drift.items() if not found["met"]] == [
        "drift.labels",
        "drift.length",
        "drift.mean.length",
        "drift.new_categories.region",
    ]
    said = [sentence for sentence in describe_unmet(shown) if "drift" in sentence]
    assert len(said) == 4 and said[0].startswith(
        "Not as expected: drift from the data of train.start_from: change of the share of the classes: "
    )
    kept = find_contract_result(LocalStore(tmp_path / "store"), other)
    assert kept is not None and kept["results"] == [found for found in shown["results"] if found["of"] not in drift]
    # Of a data set that is there it is the same, and no row is read for it.
    assert prepare(config, tmp_path, reference) == (other, shown)
    assert prepare(config, tmp_path) == (other, kept)


def test_data_that_are_like_those_have_no_drift(tmp_path: Path) -> None:
    config = text_config(write_parquet(tmp_path / "a.parquet", text_columns(300)), **METADATA)
    dataset, contract = prepare(config, tmp_path)
    _, shown = prepare(config, tmp_path, describe_dataset(dataset, contract["measures"]))
    drift = [found for found in shown["results"] if found["of"].startswith("drift.")]
    assert len(drift) == 7 and all(found["met"] for found in drift)


@pytest.mark.parametrize("origin", ["run", "gone", "folder"])
def test_the_reference_is_the_data_set_of_the_run_that_start_from_names(tmp_path: Path, origin: str) -> None:
    store = LocalStore(tmp_path / "store")
    data = text_config(write_parquet(tmp_path / "a.parquet", text_columns(300)), **METADATA)
    dataset, contract = prepare(data, tmp_path)
    config = RunConfig.model_validate({"run": "first", "data": data.model_dump()})
    state = RunState(
        run="first",
        created_at=1,
        config=config.model_dump(mode="json"),
        dataset_digest=dataset.digest,
        dataset_sha256=dataset_sha256(store, dataset.digest),
        steps_total=10,
    )
    Manifest(store, "first").create(state)
    names = {"run": f"{store.root}/runs/first", "gone": f"{store.root}/runs/other", "folder": str(tmp_path)}
    changes = {"train": config.train.model_copy(update={"start_from": names[origin]})}
    found = find_reference(config.model_copy(update=changes))
    assert found == (describe_dataset(dataset, contract["measures"]) if origin == "run" else None)
    assert find_reference(config) is None
