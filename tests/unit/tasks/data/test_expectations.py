"""What is expected of a data set's measures: the suite of every data set, and its verdict."""

from pathlib import Path
from typing import Any

import pytest

from storage.datasets import DatasetManifest
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import describe_unmet, find_contract_result, render_markdown
from tasks.data.expectations.measures import Measure
from tasks.data.expectations.verdict import give_verdict
from tasks.data.pipeline import prepare_dataset
from tests.helpers.parquet import text_columns, text_config, token_columns, token_config, write_parquet

METADATA: dict[str, Any] = {"numeric": ["length"], "categorical": ["region"]}


def prepare(config: DataConfig, folder: Path) -> tuple[DatasetManifest, dict[str, Any]]:
    store = LocalStore(folder / "store")
    dataset = prepare_dataset(config, store, folder / "scratch")
    contract = find_contract_result(store, dataset)
    assert contract is not None
    return dataset, contract


def test_a_data_set_keeps_its_measures_and_the_verdict_on_each_expectation(tmp_path: Path) -> None:
    config = text_config(write_parquet(tmp_path / "a.parquet", text_columns(300)), **METADATA)
    dataset, contract = prepare(config, tmp_path)
    measures, results = contract["measures"], {found["of"]: found for found in contract["results"]}
    assert measures["rows"] == 300 == sum(measures[f"rows.{split}"] for split in dataset.splits)
    assert (measures["classes"], measures["categories.region"]) == (3, 5)
    assert measures["missing_share.length"] == 28 / 300
    assert measures["length.median"] == sorted(map(len, text_columns(300)["text"]))[149]
    assert results["missing_share.region"]["found"] == "18 of 300 rows (6.0%)"
    assert all(found["met"] for name, found in results.items() if not name.startswith("rows."))
    assert not results["rows.test"]["met"] and describe_unmet(contract) == []
    page = render_markdown(dataset, contract)
    assert r"missing values in column 'region' | at most 20.0% | 18 of 300 rows (6.0%)" in page
    assert f"| at least 100 | {measures['rows.test']} | not met: for information |" in page


def test_lengths_are_those_of_a_bounded_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = token_columns(600)
    monkeypatch.setattr("tasks.data.contract.measured.SAMPLE_ROWS", 30)
    _, contract = prepare(token_config(write_parquet(tmp_path / "a.parquet", columns)), tmp_path)
    lengths = sorted(map(sum, columns["attention_mask"].to_pylist()))
    assert lengths[100] <= contract["measures"]["length.median"] <= lengths[500]
    assert contract["measures"]["rows"] == 600


@pytest.mark.parametrize(("num_missing", "holds"), [(10, True), (11, False)])
def test_missing_metadata_are_bounded_over_all_files_together(tmp_path: Path, num_missing: int, holds: bool) -> None:
    # All of them in one small file: only the share over all files counts, and the bound itself is allowed.
    for part, (num_rows, num_null) in enumerate(((20, num_missing), (80, 0))):
        columns = text_columns(num_rows, first=100 * part)
        columns["region"] = [None] * num_null + ["r"] * (num_rows - num_null)
        write_parquet(tmp_path / "data" / f"{part}.parquet", columns)
    config = text_config(tmp_path / "data", categorical=["region"], max_missing_fraction=0.1)
    if holds:
        prepare(config, tmp_path)
        return
    with pytest.raises(ContractError) as caught:
        prepare(config, tmp_path)
    assert str(caught.value) == (
        "The data do not meet an expectation: missing values in column 'region'.\n"
        "  expected: at most 10.0%\n"
        "  found: 11 of 100 rows (11.0%)\n"
        "  what to do: Raise data.max_missing_fraction, or take the column out of the configuration.\n"
        "No data set was written."
    )
    assert not list(LocalStore(tmp_path / "store").list_keys("datasets/"))


def test_a_warning_keeps_nothing_from_being_published_and_is_one_sentence() -> None:
    config = text_config("a.parquet", **METADATA)
    measures = {"missing_share.region": Measure(0.1), "class_share.largest": Measure(0.995, "'a' in 995 of 1,000 rows")}
    contract = give_verdict(config, measures)
    assert [found["of"] for found in contract["results"]] == ["missing_share.region", "class_share.largest"]
    assert describe_unmet(contract) == [
        "Not as expected: rows of the most frequent class: 'a' in 995 of 1,000 rows, expected at most 99.0%. "
        "A model that always predicts this class is right as often: give more rows of the others."
    ]
