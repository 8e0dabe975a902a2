"""What an exported model makes of a table that is not what it was trained on: one error, or what was asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.commands import call_here
from tests.helpers.exported_runs import Exported, export_policy
from tests.helpers.messages import require_message

NOT_UTF8 = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())[0]  # calls itself text


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_policy(tmp_path_factory.mktemp("policy"), "--no-onnx")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("predict-without-texts", lambda table: table.drop_columns("text")),
        ("predict-without-a-category", lambda table: table.drop_columns("language")),
        ("predict-numbers-for-texts", lambda table: replaced(table, "text", pa.array(range(len(table))))),
        ("predict-words-for-numbers", lambda table: replaced(table, "age_days", pa.array(["x"] * len(table)))),
        (
            "predict-a-text-that-is-missing",
            lambda table: replaced(table, "text", pa.array(["a"] * 9 + [None] * (len(table) - 9))),
        ),
        (
            "predict-a-text-that-is-empty",
            lambda table: replaced(table, "text", pa.array(["a", " \u200b"] * (len(table) // 2) + ["a"])),
        ),
        (
            "predict-a-text-that-is-too-long",
            lambda table: replaced(table, "text", pa.array(["word " * 99] * len(table))),
        ),
        (
            "predict-a-number-that-is-infinite",
            lambda table: replaced(table, "age_days", pa.array([float("inf")] * len(table))),
        ),
        ("predict-a-text-that-is-not-utf-8", lambda table: replaced(table, "text", pa.repeat(NOT_UTF8, len(table)))),
        ("predict-a-column-twice", lambda table: table.append_column("id", table.column("id"))),
    ],
)
def test_data_that_do_not_fit_are_one_error_and_what_was_there_stays(
    policy: Exported, tmp_path: Path, name: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    rows = pq.read_table(policy.data)
    rows = rows.slice(0, len(rows) - (len(rows) + 1) % 2)  # an odd number
    pq.write_table(change(rows), tmp_path / "data.parquet")
    result = tmp_path / "result.parquet"
    result.write_text("what was there")
    line = ["predict", policy.folder, tmp_path / "data.parquet", result]
    require_message(name, tmp_path, line, MODEL=policy.folder)


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def test_a_folder_or_a_file_that_is_none_is_one_error(policy: Exported, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    result = tmp_path / "result.parquet"
    for arguments, said in (
        ([tmp_path, policy.data, result], "is no exported model"),
        ([policy.folder, tmp_path / "absent.parquet", result], "absent.parquet does not exist"),
        ([policy.folder, tmp_path / "text.parquet", result], "cannot be read"),
        ([policy.folder, policy.data, policy.data], "are the same file"),
        ([policy.folder, policy.data, tmp_path / "no" / "result.parquet"], "Cannot write"),
        ([policy.folder, policy.data, tmp_path / "text.parquet" / "result.parquet"], "Not a directory"),
        ([policy.folder, policy.data, tmp_path], "Is a directory"),
    ):
        done = call_here(["predict", *arguments])
        assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not result.exists()


def test_rows_without_ids_are_numbered_and_too_long_ones_cut_where_that_is_asked(
    policy: Exported, tmp_path: Path
) -> None:
    rows = pq.read_table(policy.data).drop_columns("id")
    long = replaced(rows, "text", pa.array([f"{text} {'again ' * 80}" for text in rows.column("text").to_pylist()]))
    pq.write_table(long, tmp_path / "data.parquet")
    done = call_here(["predict", policy.folder, tmp_path / "data.parquet", tmp_path / "result.parquet", "--truncate"])
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "result.parquet").column("row").to_pylist() == list(range(len(rows)))


def test_texts_in_json_lines_have_the_answers_of_parquet_without_the_rows_that_were_to_be_left_out(
    policy: Exported, tmp_path: Path
) -> None:
    rows = pq.read_table(policy.data).to_pylist()
    bad = [rows[2] | {"text": None}, rows[3] | {"text": "word " * 99}, rows[4] | {"age_days": "old"}]
    lines = [json.dumps(row) for row in [*rows[:2], *bad, *rows[2:]]]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    arguments = ["predict", policy.folder, tmp_path / "new.jsonl", tmp_path / "result.parquet"]
    refused = call_here(arguments)
    assert refused.returncode == 2 and "in line 5 of" in refused.stderr and "--skip-bad ROWS.parquet" in refused.stderr
    done = call_here([*arguments, "--skip-bad", tmp_path / "bad.parquet"])
    assert done.returncode == 0, done.stderr
    assert f"3 left out, listed with the reasons in {tmp_path / 'bad.parquet'}" in done.stdout
    assert pq.read_table(tmp_path / "bad.parquet").column("line").to_pylist() == [3, 4, 5]
    expected = tmp_path / "expected.parquet"
    assert call_here(["predict", policy.folder, policy.data, expected]).returncode == 0
    for name in ("id", "predicted"):
        assert pq.read_table(tmp_path / "result.parquet")[name].equals(pq.read_table(expected)[name])
