"""Sources that are not Parquet: the same rows make the same samples, and what cannot be read is one clear error."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pytest

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, ContractError
from storage.objects.digests import digest_of, sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.configuration import DataConfig
from tasks.data.pipeline import find_inputs, prepare_dataset
from tasks.data.readers import conversion, lines
from tasks.data.readers.check import check_columns
from tasks.data.sources.files import find_files
from tests.helpers.parquet import (
    read_rows,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
    write_table,
)

SUFFIXES = ["csv", "csv.gz", "tsv", "jsonl", "ndjson.gz", "feather", "arrow"]
METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
NUM_ROWS = 300
Columns = dict[str, Any]


def prepared(config: DataConfig, folder: Path) -> tuple[LocalStore, DatasetManifest]:
    store = LocalStore(folder / "store")
    return store, prepare_dataset(config, store, folder / "scratch")


def content(manifest: DatasetManifest) -> dict[str, Any]:
    """All that training and evaluation read of a data set, with the hash of every shard."""
    return manifest.model_dump(exclude={"digest", "inputs", "versions", "contract"})


def assert_same_samples(make_config: Callable[[Path], DataConfig], parts: list[Columns], root: Path, kind: str) -> None:
    """The data sets of these parts, written in a format and as Parquet, have the same content."""
    manifests = []
    for suffix in ("parquet", kind):
        for index, columns in enumerate(parts):
            write_table(root / suffix / "data" / f"part-{index}.{suffix}", columns)
        manifests.append(prepared(make_config(root / suffix / "data"), root / suffix)[1])
    assert content(manifests[0]) == content(manifests[1])
    assert manifests[0].digest != manifests[1].digest


def odd_texts(num_rows: int) -> list[str]:
    odd = [
        'say "so"',
        "a, b;\tc",
        "two\nlines",
        "two\r\nlines",
        "naïve café 東京 🙂",
        "'quoted'",
        " spaces ",
        "007",
        "NULL",
    ]
    return [f"{odd[i % len(odd)]} {i}" if i % 3 else odd[i % len(odd)] for i in range(num_rows)]


@pytest.mark.parametrize("kind", SUFFIXES)
@pytest.mark.parametrize("id_column", ["sample_id", None])
def test_the_same_rows_give_the_same_samples_in_every_format(tmp_path: Path, kind: str, id_column: str | None) -> None:
    parts = [text_columns(NUM_ROWS // 3, first=i * NUM_ROWS // 3) for i in range(3)]
    parts[1]["text"] = odd_texts(NUM_ROWS // 3)
    # What Parquet has as nulls in the whole of a file is there in the others too.
    parts[2]["length"] = pa.nulls(NUM_ROWS // 3, pa.int64())
    changes = METADATA | {"id": id_column, "max_missing_fraction": 0.5}
    assert_same_samples(lambda source: text_config(source, **changes), parts, tmp_path, kind)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_token_lists_masks_and_boolean_labels_are_the_same_in_every_format(tmp_path: Path, kind: str) -> None:
    split = {"by": "column", "column": "shard_id"}
    assert_same_samples(lambda source: token_config(source, split=split), [token_columns(200)], tmp_path, kind)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "feather"])
@pytest.mark.parametrize("zone", [None, UTC])
def test_a_split_by_time_is_the_same_in_every_format(tmp_path: Path, kind: str, zone: Any) -> None:
    begin = datetime(2026, 1, 1, tzinfo=zone)
    times = [begin + timedelta(hours=i * 37 % NUM_ROWS, microseconds=i) for i in range(NUM_ROWS)]
    split = {"by": "time", "column": "at"}
    parts = [{**text_columns(NUM_ROWS), "at": times}]
    assert_same_samples(lambda source: text_config(source, split=split), parts, tmp_path, kind)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "feather"])
def test_a_split_that_is_given_and_one_by_whole_numbers_of_time_are_the_same_in_every_format(
    tmp_path: Path, kind: str
) -> None:
    columns = {
        **text_columns(NUM_ROWS),
        "part": [("train", "train", "dev", "test")[i // 3 % 4] for i in range(NUM_ROWS)],
        "fold": [i // 3 % 5 for i in range(NUM_ROWS)],
        "year": [1990 + i % 40 for i in range(NUM_ROWS)],
    }
    folds = {"train_values": [0, 1, 2], "validation_values": [3], "test_values": [4]}
    splits = [
        {"by": "given", "column": "part"},
        {"by": "given", "column": "fold", **folds},
        {"by": "time", "column": "year"},
    ]
    for index, split in enumerate(splits):
        make_config = partial(text_config, split=split)
        assert_same_samples(make_config, [columns], tmp_path / str(index), kind)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_and_categories_keep_their_zeros_also_where_a_number_came_first(tmp_path: Path, kind: str) -> None:
    columns = text_columns(60)
    columns["sample_id"] = [f"{i:03d}" for i in range(60)]
    columns["region"] = ["12", "007", "7", "1.0", "1e3"] * 12
    source = write_table(tmp_path / f"a.{kind}", columns)
    store, manifest = prepared(text_config(source, categorical=["region"]), tmp_path)
    assert set(read_rows(store, manifest)) == set(columns["sample_id"])
    assert set(manifest.categorical[0].vocabulary) == {"12", "007", "7", "1.0", "1e3"}


def test_a_text_among_numbers_far_behind_the_first_rows_is_found_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "BATCH_ROWS", 64)
    columns = text_columns(5000)
    columns["length"] = [str(i) if i not in (4000, 4998) else "n/a" for i in range(5000)]
    columns["text"] = [f"two\nlines {i}" for i in range(5000)]
    source = write_table(tmp_path / "a.csv", columns)
    assert_fails(
        text_config(source, numeric=["length"]),
        tmp_path,
        "Column 'length' in a.csv has values of the wrong kind",
        "expected: numbers, for data.numeric",
        f"2 of 5,000 rows of {source}: line 8,002 has 'n/a'; line 9,998 has 'n/a'",
        "leave the field empty",
    )


def test_every_type_of_arrow_that_a_parquet_file_may_have_is_taken(tmp_path: Path) -> None:
    columns = text_columns(200)
    numbers = [Decimal(i) / 4 for i in range(200)]
    columns |= {
        "text": pa.array(columns["text"], pa.string_view()),
        "domain": pa.array(columns["domain"], pa.large_string()).dictionary_encode(),
        "region": columns["region"].dictionary_encode(),
        "length": pa.array(numbers, pa.decimal128(9, 2)),
        "score": pa.array(range(200), pa.uint64()),
        "half": pa.array([0.5] * 200, pa.float16()),
        "day": pa.array([date(2026, 1, 1) + timedelta(days=i) for i in range(200)], pa.date32()),
    }
    changes = METADATA | {"numeric": ["length", "score", "half"], "split": {"by": "time", "column": "day"}}
    assert_same_samples(partial(text_config, **changes), [columns], tmp_path, "feather")


def test_the_digest_is_over_the_bytes_of_the_source_and_the_same_rows_are_prepared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path / "a.csv", text_columns(90))
    config = text_config(source)
    store, manifest = prepared(config, tmp_path)
    assert manifest.inputs["files"] == [{"name": "a.csv", "sha256": sha256_of_file(source)}]
    assert digest_of(find_inputs(config, tmp_path)) == manifest.digest
    monkeypatch.setattr("tasks.data.pipeline.convert_files", lambda *_: pytest.fail("read again"))
    assert prepare_dataset(config, store, tmp_path / "scratch") == manifest


def test_neither_the_size_of_a_batch_nor_that_of_the_limit_changes_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path / "a.csv", text_columns(NUM_ROWS))
    whole = prepared(text_config(source, **METADATA), tmp_path / "whole")[1]
    monkeypatch.setattr(conversion, "BATCH_BYTES", 700)
    assert prepared(text_config(source, memory_limit="300MB", **METADATA), tmp_path / "cut")[1] == whole


def test_what_each_value_means_in_json_is_what_it_means_in_parquet(tmp_path: Path) -> None:
    rows = [
        {
            "sample_id": i if i % 2 else f"s{i}",
            "text": "a text \U0001f642",
            "domain": i % 3,
            "length": [1, 2.5, True, None, float("nan")][i % 5],
            "region": [3, 3.0, True, "x", None, float("nan"), 2.5][i % 7],
        }
        for i in range(105)
    ]
    source = tmp_path / "a.jsonl"
    source.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in rows))
    config = text_config(source, numeric=["length"], categorical=["region"], max_missing_fraction=0.5)
    store, manifest = prepared(config, tmp_path)
    assert set(read_rows(store, manifest)) == {str(row["sample_id"]) for row in rows}
    assert manifest.target.classes == ["0", "1", "2"]
    assert manifest.categorical[0].vocabulary[0] == "3"
    assert set(manifest.categorical[0].vocabulary) == {"3", "true", "x", "2.5"}


def assert_fails(config: DataConfig, tmp_path: Path, *expected: str, error: type[Exception] = ContractError) -> None:
    """One error with these words; nothing is in the store, and no working files are left."""
    with pytest.raises(error) as caught:
        prepared(config, tmp_path)
    for text in expected:
        assert text in str(caught.value)
    assert not list(LocalStore(tmp_path / "store").list_keys(""))
    assert not list((tmp_path / "scratch").glob("prepare-*"))


HEADER, GOOD = b"sample_id,text,domain,length\n", b"a,b,work,1\nb,c,travel,2\n"
BROKEN_LINES: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "too few values": (
        "csv",
        HEADER + GOOD + b"c,d,work\n" + GOOD,
        ("broken in line 4", "4 values", "found: 3 values"),
    ),
    "too many values": ("csv", HEADER + GOOD + b"c,d,work,1,2\n", ("broken in line 4", "found: 5 values")),
    "a quote that is not closed": (
        "csv",
        HEADER + GOOD + b'c,"d,work,1\n' + GOOD * 50,
        ("broken in line 4", "every quote closed", "in a row that goes on to line 104"),
    ),
    "a quote within a field": ("csv", HEADER + GOOD + b'c,"d"e,work,1\n', ("broken in line 4", "written twice")),
    "after a field of two lines": ("csv", HEADER + b'a,"b\nb",work,1\r\n\nc,d\n', ("broken in line 5", "2 values")),
    "another encoding": (
        "csv",
        HEADER + GOOD + b"c,caf\xe9,work,1\n",
        ("broken in line 4", "UTF-8", "0xe9 at position 6"),
    ),
    "another separator": (
        "csv",
        b"sample_id;text;domain\na;b;work\n",
        ("'sample_id' is missing", "sample_id;text;domain"),
    ),
    "a column twice": ("csv", b"sample_id,text,domain,text\n", ("'text' is ambiguous",)),
    "no byte": ("csv", b"", ("is empty", "0 bytes")),
    "no header": ("csv", b"\n\n", ("has no header",)),
    "no rows": ("csv", HEADER, ("There are no rows in 'a.csv'",)),
    "no gzip": ("csv.gz", HEADER + GOOD, ("cannot be read to its end", "Not a gzipped file")),
    "half of a gzip": (
        "csv.gz",
        gzip.compress(HEADER + GOOD * 500)[:-30],
        ("cannot be read to its end", "ended before"),
    ),
    "a gzip with damage": ("csv.gz", gzip.compress(HEADER + GOOD)[:-8] + bytes(8), ("cannot be read", "CRC")),
    "half an object": (
        "jsonl",
        b'{"sample_id": "a", "text": "b", "domain": "work"}\n{"sample_id": "b", "te',
        ("broken in line 2", "a JSON object in each line", """'{"sample_id": "b", "te'"""),
    ),
    "no object": ("jsonl", b'["a", "b"]\n', ("broken in line 1", "a JSON object in each line", """'["a", "b"]'""")),
    "one object over many lines": ("jsonl", b'{\n"sample_id": "a"\n}\n', ("broken in line 1", "what cannot be read")),
    "objects in objects without end": ("jsonl", b'{"a":' * 100_000, ("broken in line 1", "what cannot be read")),
    "a key twice in a line": (
        "jsonl",
        b'{"sample_id": "a", "text": "b", "domain": "c", "text": "d"}\n',
        ("broken in line 1", "the key 'text' is there twice"),
    ),
    "a key that no line has": (
        "jsonl",
        b'{"sample_id": "a", "texts": "b", "domain": "c"}\n',
        ("'text' is missing", "texts"),
    ),
}


@pytest.mark.parametrize("mistake", BROKEN_LINES)
def test_a_line_that_cannot_be_read_is_one_clear_error_with_its_number(tmp_path: Path, mistake: str) -> None:
    kind, written, expected = BROKEN_LINES[mistake]
    source = tmp_path / f"a.{kind}"
    source.write_bytes(written)
    assert_fails(text_config(source), tmp_path, *expected, "expected:", "found:", "what to do:", "Nothing was written")


WRONG_VALUES: dict[str, tuple[str, Columns, dict[str, Any], tuple[str, ...]]] = {
    "a word in a column of numbers": (
        "csv",
        {"score": ["1.5", "1_000", "0x10", "12 "] * 30},
        {"numeric": ["score"]},
        ("'score' in a.csv has values of the wrong kind", "60 of 120 rows", "line 3 has '1_000'; line 4 has '0x10'"),
    ),
    "numbers as text in JSON": (
        "jsonl",
        {"score": ["1.5"] * 120},
        {"numeric": ["score"]},
        ("'score'", "expected: numbers", "120 of 120 rows", "line 1 has '1.5'", "write null"),
    ),
    "text that is a number": ("jsonl", {"text": [7] * 120}, {}, ("'text'", "expected: text", "line 1 has 7")),
    "text that is a list": ("jsonl", {"text": [["a"]] * 120}, {}, ("'text'", "line 1 has ['a']")),
    "a label that is a float": ("jsonl", {"domain": [1.5] * 120}, {}, ("'domain'", "text, whole numbers or booleans")),
    "half of a surrogate pair": ("jsonl", {"text": ["\\ud83d"] * 120}, {}, ("'text'", "line 1 has")),
    "a category that is an object": ("jsonl", {"region": [{"a": 1}] * 120}, {"categorical": ["region"]}, ("'region'",)),
    "times of two kinds": (
        "csv",
        {"at": ["2026-01-01", "2026-01-01T00:00:00Z"] * 60},
        {"split": {"by": "time", "column": "at"}},
        ("'at'", "one kind in all rows", "60 of 120 rows", "line 3 has '2026-01-01T00:00:00Z'"),
    ),
    "times that are words": (
        "csv",
        {"at": ["yesterday"] * 120},
        {"split": {"by": "time", "column": "at"}},
        ("'at'", "times such as 2026-01-31T12:00:00", "line 2 has 'yesterday'"),
    ),
    "an empty field for a text": ("csv", {"text": ["", '""'] * 60}, {}, ("missing text", "60 of 120 rows", "row 0")),
    "a value that names no split": (
        "csv",
        {"part": ["train", "dev", "test", "eval"] * 30},
        {"split": {"by": "given", "column": "part"}},
        ("names no split", "30 of 120 rows: a.csv has 30 (row 3, id 's00003' has 'eval'"),
    ),
    "floats where text is expected": (
        "feather",
        {"text": [1.5] * 120},
        {},
        ("'text' in a.feather has the wrong type",),
    ),
}


@pytest.mark.parametrize("mistake", WRONG_VALUES)
def test_a_value_of_the_wrong_kind_is_one_clear_error_with_counts_and_lines(tmp_path: Path, mistake: str) -> None:
    kind, changes, options, expected = WRONG_VALUES[mistake]
    source = write_table(tmp_path / f"a.{kind}", text_columns(120) | changes)
    if mistake == "half of a surrogate pair":
        source.write_text(source.read_text().replace("\\\\ud83d", "\\ud83d"))
    assert_fails(text_config(source, **options), tmp_path, *expected)


TOKEN_MISTAKES: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "numbers without brackets": (
        "csv",
        "1 2 3",
        ("lists of whole numbers, written as [1, 2, 3]", "line 2 has '1 2 3'"),
    ),
    "real numbers": ("csv", "[1.5]", ("'input_ids'", "100 of 100 rows")),
    "booleans": ("jsonl", [True], ("'input_ids'", "lists of whole numbers", "line 1 has [True]")),
    "numbers that need more than 64 bits": ("jsonl", [2**63], ("'input_ids'", "100 of 100 rows")),
    "a null": ("csv", "[null, 1]", ("'input_ids'", "null among the tokens")),
}


@pytest.mark.parametrize("mistake", TOKEN_MISTAKES)
def test_tokens_that_are_no_lists_of_whole_numbers_are_one_clear_error(tmp_path: Path, mistake: str) -> None:
    kind, value, expected = TOKEN_MISTAKES[mistake]
    rows = [{"sample_id": i, "input_ids": value, "label": i % 2} for i in range(100)]
    source = tmp_path / f"a.{kind}"
    as_csv = ["sample_id,input_ids,label", *(f'{row["sample_id"]},"{value}",{row["label"]}' for row in rows)]
    source.write_text("\n".join(as_csv if kind == "csv" else map(json.dumps, rows)))
    assert_fails(token_config(source, attention_mask=None), tmp_path, *expected)


def test_a_line_without_end_does_not_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 1000)
    source = tmp_path / "a.csv"
    source.write_bytes(HEADER + b'a,"' + b"x" * 2000)
    assert_fails(text_config(source), tmp_path, "broken in line 2", "at most 1,000 bytes in a line")
    source.write_bytes(HEADER + GOOD + b'a,"' + b"x\n" * 2000)
    assert_fails(text_config(source), tmp_path, "broken in line 4", "in a row that goes on to line")


def arrow_file(folder: Path) -> Path:
    return write_table(folder / "a.arrow", text_columns(NUM_ROWS))


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_an_arrow_file_that_was_cut_off_is_named(tmp_path: Path, kept: float) -> None:
    source = arrow_file(tmp_path)
    whole = source.read_bytes()
    source.write_bytes(whole[: int(len(whole) * kept)])
    assert_fails(text_config(source), tmp_path, f"{source}", "Nothing was written")


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_an_arrow_file_with_damage_in_it_is_named(tmp_path: Path, compression: str) -> None:
    source = tmp_path / "a.arrow"
    feather.write_feather(pa.table(text_columns(NUM_ROWS)), source, compression=compression)
    content = bytearray(source.read_bytes())
    content[1200:3000] = b"\xff" * 1800  # in the offsets and texts of the first column
    source.write_bytes(content)
    assert_fails(text_config(source), tmp_path, f"{source} cannot be read", "cut off or damaged")


def test_an_arrow_stream_is_refused_because_nothing_shows_that_it_is_complete(tmp_path: Path) -> None:
    source = tmp_path / "a.arrow"
    table = pa.table(text_columns(NUM_ROWS))
    with pa.OSFile(str(source), "wb") as opened, pa.ipc.new_stream(opened, table.schema) as writer:
        writer.write_table(table)
    assert_fails(text_config(source), tmp_path, "found: an Arrow stream", "as Feather or as Parquet")


def test_a_source_of_two_formats_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_table(folder / "part-0.parquet", text_columns(30))
    write_table(folder / "part-1.csv", text_columns(30, first=30))
    expected = ("must all have one format", "1 CSV (part-1.csv), 1 Parquet (part-0.parquet)", "FOLDER/**/*.parquet")
    assert_fails(text_config(folder), tmp_path, *expected, error=ConfigurationError)
    assert_fails(text_config(folder / "part-*"), tmp_path, "must all have one format", error=ConfigurationError)
    assert [file.name for file in find_files(str(folder / "*.csv"))] == ["part-1.csv"]


def test_what_a_glob_for_the_parquet_files_finds_is_the_data_set_that_the_folder_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_parquet(folder / "deep" / "part-0.parquet", text_columns(90))
    of_folder = find_inputs(text_config(folder), tmp_path)
    (folder / "notes.csv").write_text("a,b\n")
    with pytest.raises(ConfigurationError, match=r"FOLDER/\*\*/\*\.parquet"):
        find_files(str(folder))
    assert find_inputs(text_config(folder / "**" / "*.parquet"), tmp_path) == of_folder


@pytest.mark.parametrize("kind", ["csv", "feather"])
def test_a_missing_column_is_an_error_before_anything_is_hashed(tmp_path: Path, kind: str) -> None:
    source = write_table(tmp_path / f"a.{kind}", text_columns(30))
    with pytest.raises(ContractError, match=r"Column 'prompt' is missing in a\.\w+\."):
        check_columns(find_files(str(source)), text_config(source, text="prompt"))
    assert_fails(text_config(source, text="prompt"), tmp_path, "Column 'prompt' is missing")
    assert not (tmp_path / "scratch").exists()


def test_a_source_that_is_read_row_by_row_is_told_with_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "BATCH_ROWS", 100)
    told: list[tuple[str, float]] = []
    config = text_config(write_table(tmp_path / "a.csv", text_columns(NUM_ROWS)))
    prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch", lambda *report: told.append(report))
    assert list(dict.fromkeys(phase for phase, _ in told)) == ["fingerprint", "read", "check", "tokenise", "shard"]
    shares = [share for phase, share in told if phase == "read"]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 4
