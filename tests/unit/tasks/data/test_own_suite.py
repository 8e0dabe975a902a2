"""A suite of the user's own: over a sample of the rows and over the measures, before a data set is published."""

import json
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import describe_unmet
from tasks.data.expectations.user_suite import DRIFT, measure_names, read_suite
from tasks.data.expectations.verdict import render_default_suite
from tasks.data.pipeline import prepare_dataset
from tests.helpers.parquet import text_columns, text_config, token_columns, token_config, write_parquet

MATCHES = "expect_column_values_to_match_regex"
Expectation = dict[str, Any]


def about(kind: str, column: str, severity: str = "critical", **kwargs: Any) -> Expectation:
    return {"type": kind, "kwargs": {"column": column, **kwargs}, "severity": severity}


def write_suite(folder: Path, *expectations: Any) -> str:
    path = folder / "suite.json"
    path.write_text(json.dumps({"name": "mine", "expectations": expectations, "meta": {}}))
    return str(path)


def prepare(config: DataConfig, folder: Path) -> tuple[DatasetManifest, dict[str, Any]]:
    found: list[dict[str, Any] | None] = []
    dataset = prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch", on_contract=found.append)
    assert found[0] is not None
    return dataset, found[0]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "a.parquet", text_columns(300))


def test_rows_are_validated_as_the_user_names_them_and_measures_with_the_bounds_that_the_user_gives(
    source: Path, tmp_path: Path
) -> None:
    suite = write_suite(
        tmp_path,
        about(MATCHES, "text", "warning", regex="number [0-9]+$"),
        about("expect_column_values_to_not_be_in_set", "domain", "warning", value_set=["travel"], mostly=0.9),
        about("expect_column_mean_to_be_between", "length", min_value=40, max_value=50),
        about("expect_column_values_to_be_between", "missing_share.region", "info", max_value=0.01),
        {"type": "expect_column_pair_values_a_to_be_greater_than_b", "severity": "info", "notes": "Odd.",
         "kwargs": {"column_A": "length", "column_B": "score", "ignore_row_if": "either_value_is_missing"}},
    )  # fmt: skip
    config = text_config(source, numeric=["length", "score"], categorical=["region"], expectations=suite)
    dataset, contract = prepare(config, tmp_path)
    own = {found["of"]: found for found in contract["results"] if found["suite"] == "own"}
    assert list(own) == ["missing_share.region", "text", "domain", "length", "length, score"]
    assert [found["met"] for found in own.values()] == [False, True, False, True, False]
    assert own["text"]["found"] == "0 of 300 rows of the sample do not"
    assert own["domain"]["found"].startswith(
        "100 of 300 rows of the sample do not: id 's00001' has 'travel'; id 's00004'"
    )
    assert (own["domain"]["expected"], own["length"]["expected"]) == (
        "value_set ['travel'], mostly 0.9",
        "at least 40 and at most 50",
    )
    assert [found["of"] for found in contract["results"]].count("missing_share.region") == 1
    assert describe_unmet(contract) == [
        "Not as expected: column values to not be in set, of 'domain': "
        f"{own['domain']['found']}, expected value_set ['travel'], mostly 0.9."
    ]
    without = prepare_dataset(
        config.model_copy(update={"expectations": None}), LocalStore(tmp_path / "b"), tmp_path / "s"
    )
    assert without.digest == dataset.digest


def test_rows_that_do_not_meet_a_critical_expectation_keep_the_data_set_from_being_published(
    source: Path, tmp_path: Path
) -> None:
    suite = write_suite(tmp_path, about(MATCHES, "text", regex="^p"), about(MATCHES, "domain", regex="^b"))
    with pytest.raises(ContractError) as caught:
        prepare(text_config(source, expectations=suite), tmp_path)
    message = str(caught.value)
    assert f"do not meet an expectation of {suite}: column values to match regex, of 'text'." in message
    assert f"expected: regex '^p' [{MATCHES} of text]\n  found: 100 of 300 rows of the sample do not:" in message
    assert "id 's00001' has 'book a flight to oslo number 1'; " in message and "also not met: column values" in message
    assert not list(LocalStore(tmp_path / "store").list_keys("datasets/"))


def test_a_suite_that_is_given_later_is_validated_for_the_data_set_that_is_there(source: Path, tmp_path: Path) -> None:
    dataset, _ = prepare(text_config(source), tmp_path)
    config = text_config(source, expectations=write_suite(tmp_path, about(MATCHES, "text", regex="^pay")))
    with pytest.raises(ContractError, match="200 of 300 rows of the sample"):
        prepare(config, tmp_path)
    write_suite(tmp_path, about(MATCHES, "text", regex="number"))
    found, contract = prepare(config, tmp_path)
    assert found == dataset and contract["results"][-1]["found"] == "0 of 300 rows of the sample do not"


def test_the_sample_of_tokenised_rows_is_bounded_and_has_the_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.data.contract.measured.SAMPLE_ROWS", 30)
    suite = write_suite(tmp_path, about("expect_column_values_to_be_in_set", "label", "info", value_set=["other"]))
    source = write_parquet(tmp_path / "a.parquet", token_columns(600))
    _, contract = prepare(token_config(source, numeric=["shard_id"], expectations=suite), tmp_path)
    rows, _, examples = contract["results"][-1]["found"].partition(" of ")
    assert 5 < int(rows) < 60 and examples.startswith(f"{rows} rows of the sample do not: id '")
    _, again = prepare(token_config(source, numeric=["shard_id"], expectations=suite), tmp_path / "again")
    assert again == contract


def test_a_suite_that_great_expectations_wrote_is_read(source: Path, tmp_path: Path) -> None:
    import great_expectations as gx

    asked = gx.expectations.ExpectColumnValueLengthsToBeBetween(column="text", min_value=1, severity="warning")
    suite = gx.ExpectationSuite(name="written", expectations=[asked])
    (tmp_path / "suite.json").write_text(json.dumps(suite.to_json_dict()))
    _, contract = prepare(text_config(source, expectations=str(tmp_path / "suite.json")), tmp_path)
    assert (contract["results"][-1]["of"], contract["results"][-1]["met"]) == ("text", True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "it is not JSON: Expecting property name"),
        ('{"expectations": {}}', 'it has no list "expectations"'),
        (["x"], 'expectation 1: expected an object with "type"'),
        ([{"type": MATCHES}], f'expectation 1, {MATCHES}: expected "kwargs"'),
        ([about(MATCHES, "text", "fatal")], "\"severity\" is 'fatal': expected one of critical, warning, info"),
        ([about(MATCHES, "regoin")], "'regoin' is neither a column that the configuration names (sample_id, domain, "
         "text, region) nor a measure. Did you mean 'region'?"),
        ([about(MATCHES, "text"), about(MATCHES, "missing_share.length")], "expectation 2"),
        ([{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 3}}], "it is about no column. Of"),
        ([{"type": "expect_multicolumn_sum_to_equal", "kwargs": {"column_list": ["text", "rows"]}}],
         "some are columns of the rows and some are measures"),
    ],
)  # fmt: skip
def test_a_suite_that_is_wrong_is_one_error_that_names_the_expectation(tmp_path: Path, content: Any, said: str) -> None:
    path = write_suite(tmp_path, *content) if isinstance(content, list) else str(tmp_path / "suite.json")
    if isinstance(content, str):
        Path(path).write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        read_suite(text_config("a.parquet", categorical=["region"], expectations=path))
    assert said in str(caught.value) and f"{path} (data.expectations)" in str(caught.value)


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        (
            about("expect_text_to_be_good", "text"),
            "expectation 1, expect_text_to_be_good: expect_text_to_be_good not found",
        ),
        (about(MATCHES, "text", regexp="a"), "extra fields not permitted"),
    ],
)
def test_what_great_expectations_does_not_know_is_an_error_before_anything_is_prepared(
    source: Path, tmp_path: Path, expectation: Expectation, said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        prepare(text_config(source, expectations=write_suite(tmp_path, expectation)), tmp_path)
    assert said in str(caught.value)
    assert not list(LocalStore(tmp_path / "store").list_keys("")) and not list((tmp_path / "scratch").glob("*/"))


def test_an_expectation_that_cannot_be_evaluated_is_an_error_of_the_suite(source: Path, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, about(MATCHES, "text", regex="("))
    with pytest.raises(ConfigurationError, match=rf"expectation 1, {MATCHES}: Great Expectations cannot evaluate it: "):
        prepare(text_config(source, expectations=suite), tmp_path)


def test_the_default_suite_is_printed_as_one_that_may_be_changed_and_given(source: Path, tmp_path: Path) -> None:
    config = text_config(source, numeric=["length"], categorical=["region"], expectations=str(tmp_path / "suite.json"))
    printed = render_default_suite(config)
    assert '"max_value": 0.2' in printed
    (tmp_path / "suite.json").write_text(printed)
    _, contract = prepare(config, tmp_path)
    assert {found["suite"] for found in contract["results"]} == {"own"}


def test_every_measure_has_a_name_that_a_suite_may_use(source: Path, tmp_path: Path) -> None:
    config = text_config(source, numeric=["length"], categorical=["region"])
    _, contract = prepare(config, tmp_path)
    assert list(contract["measures"]) == [name for name in measure_names(config) if not name.startswith(DRIFT)]
