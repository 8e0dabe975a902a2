"""Predictions for a table in each format, and for one with rows that the model does not take."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import ConfigurationError, ContractError
from tasks.models.prediction import Counts, Prediction
from tests.helpers.parquet import write_parquet, write_table
from tests.helpers.s3_server import BUCKET, make_bucket, put_object, use_s3
from tests.helpers.small_models import make_model

NUM_ROWS = 30


def columns(first: int = 0, count: int = NUM_ROWS) -> dict[str, Any]:
    rows = range(first, first + count)
    return {
        "id": [f"s{row}" for row in rows],
        "ids": pa.array([[1 + row % 40, 2, 3] for row in rows], pa.list_(pa.int32())),
        "mask": pa.array([[1, 1, row % 2] for row in rows], pa.list_(pa.int32())),
        "n": pa.array([None if row % 7 == 0 else row / 4 for row in rows], pa.float64()),
        "c": [None if row % 5 == 0 else ("a", "3", "new")[row % 3] for row in rows],
    }


def predict(source: Path | str, result: Path, id_column: str | None = "id", bad: Path | None = None) -> Counts:
    return Prediction(make_model(), str(source), result, id_column, bad).write(lambda done, total: None)


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "jsonl", "ndjson.gz", "arrow", "feather"])
def test_each_format_has_the_predictions_of_parquet_one_file_or_many(tmp_path: Path, kind: str) -> None:
    expected, found = tmp_path / "expected.parquet", tmp_path / "found.parquet"
    predict(write_parquet(tmp_path / "data.parquet", columns()), expected)
    for part in range(3):
        write_table(tmp_path / f"many/{part}.{kind}", columns(part * 10, 10))
    for source in (tmp_path / "many", tmp_path / f"many/*.{kind}"):
        assert predict(source, found) == (NUM_ROWS, 0)
        assert pq.read_table(found).equals(pq.read_table(expected))
    predict(tmp_path / f"many/1.{kind}", found)
    assert pq.read_table(found).column("id").equals(pq.read_table(expected).column("id").slice(10, 10))


@pytest.mark.parametrize("kind", ["parquet", "csv.gz"])
def test_a_bucket_has_the_predictions_of_a_folder(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    make_bucket(s3_endpoint)
    write = write_parquet if kind == "parquet" else write_table
    for part in range(2):
        path = write(tmp_path / f"data/{part}.{kind}", columns(part * 15, 15))
        put_object(f"new-{kind}/{part}.{kind}", path.read_bytes())
    predict(tmp_path / "data", tmp_path / "here.parquet")
    predict(f"s3://{BUCKET}/new-{kind}/", tmp_path / "there.parquet")
    assert pq.read_table(tmp_path / "there.parquet").equals(pq.read_table(tmp_path / "here.parquet"))


def test_without_ids_a_row_has_its_number_and_of_several_files_its_file(tmp_path: Path) -> None:
    for part in range(2):
        write_parquet(tmp_path / f"data/{part}.parquet", columns(part * 15, 15))
    predict(tmp_path / "data/1.parquet", tmp_path / "one.parquet", None)
    assert pq.read_table(tmp_path / "one.parquet").column_names[0] == "row"
    predict(tmp_path / "data", tmp_path / "both.parquet", None)
    both = pq.read_table(tmp_path / "both.parquet")
    assert both.column("row").to_pylist() == [*range(15), *range(15)]
    assert both.column("file").to_pylist() == [
        str(tmp_path / f"data/{part}.parquet") for part in (0, 1) for _ in range(15)
    ]


def test_bad_rows_are_left_out_listed_with_place_and_reason_and_counted(tmp_path: Path) -> None:
    rows = columns(0, 3000)
    ids = rows["ids"].to_pylist()
    ids[5], ids[1500], ids[2999] = None, [1] * 9, [1, 50, 2]
    masks = rows["mask"].to_pylist()
    masks[1500] = [1] * 9
    numbers = rows["n"].to_pylist()
    numbers[1024] = float("inf")
    changed = rows | {"ids": pa.array(ids), "mask": pa.array(masks), "n": pa.array(numbers)}
    write_parquet(tmp_path / "data.parquet", changed)
    write_parquet(tmp_path / "whole.parquet", rows)
    result, bad = tmp_path / "result.parquet", tmp_path / "bad.parquet"
    assert predict(tmp_path / "data.parquet", result, bad=bad) == (2996, 4)
    predict(tmp_path / "whole.parquet", tmp_path / "expected.parquet")
    kept = [row for row in range(3000) if row not in (5, 1024, 1500, 2999)]
    expected = pq.read_table(tmp_path / "expected.parquet").take(kept)
    found = pq.read_table(result)
    assert found.column("id").equals(expected.column("id"))
    assert found.column("predicted").equals(expected.column("predicted"))
    listed = pq.read_table(bad).to_pylist()
    assert [(row["row"], row["id"], row["column"]) for row in listed] == [
        (5, "s5", "ids"), (1024, "s1024", "n"), (1500, "s1500", "ids"), (2999, "s2999", "ids")
    ]  # fmt: skip
    assert [row["found"] for row in listed] == ["none (null)", "inf", "9 tokens", "ids from 1 to 50"]
    assert {row["file"] for row in listed} == {str(tmp_path / "data.parquet")}
    assert predict(tmp_path / "whole.parquet", result, bad=bad) == (3000, 0)
    assert pq.read_table(bad).num_rows == 0


def test_values_of_the_wrong_kind_in_a_text_file_are_found_by_their_line(tmp_path: Path) -> None:
    lines = [json.dumps({"id": "a", "ids": [1, 2], "mask": [1, 1], "n": number, "c": "a"}) for number in (1, "x", 2)]
    (tmp_path / "data.jsonl").write_text(lines[0] + "\n\n" + "\n".join(lines[1:]))
    result, bad = tmp_path / "result.parquet", tmp_path / "bad.parquet"
    with pytest.raises(ContractError, match=r"Column 'n' .* in line 3 of .*data\.jsonl\.\n  expected: numbers\n"):
        predict(tmp_path / "data.jsonl", result)
    assert not result.exists()
    assert predict(tmp_path / "data.jsonl", result, bad=bad) == (2, 1)
    (listed,) = pq.read_table(bad).to_pylist()
    assert (listed["line"], listed["row"], listed["expected"], listed["found"]) == (3, 1, "numbers", "'x'")


def test_without_the_option_the_first_bad_row_refuses_all_and_the_option_is_named(tmp_path: Path) -> None:
    ids = columns()["ids"].to_pylist()
    ids[7] = None
    data = write_parquet(tmp_path / "data.parquet", columns() | {"ids": pa.array(ids)})
    with pytest.raises(ContractError, match=r"(?s)in row 7 of .*data\.parquet, where.*--skip-bad ROWS\.parquet"):
        predict(data, tmp_path / "result.parquet")
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("data.csv", "id,ids,mask,n\n", "has no column 'c'"),
        ("data.jsonl", '{"ids": [1], "mask": [1], "n": 1}\n', "has no key 'c' in any line"),
        ("data.csv", "id,ids,mask,n,c\na,[1]\n", "is broken in line 2"),
        ("data.csv", "", "is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_also_where_bad_rows_are_left_out(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ContractError, match=said) as error:
        predict(tmp_path / name, tmp_path / "result.parquet", bad=tmp_path / "bad.parquet")
    assert str(error.value).endswith("No result was written.")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_written_takes_no_place_among_what_is_read(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data/a.parquet", columns())
    for source, result, bad, said in (
        (data, data, None, "DATA and RESULT are the same file"),
        (data, tmp_path / "r.parquet", data, "DATA and ROWS of --skip-bad are the same file"),
        (data, tmp_path / "r.parquet", tmp_path / "r.parquet", "RESULT and ROWS of --skip-bad are the same file"),
        (data.parent, data.parent / "r.parquet", None, "would be in the folder DATA"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            predict(source, result, bad=bad)
    predict(data.parent, data.parent / "_result.parquet")
