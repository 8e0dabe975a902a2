"""Sources that are not Parquet and cannot be read: each mistake is one clear error, and nothing is written."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pytest

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.readers import check, conversion, lines
from tasks.data.readers.check import check_columns, check_first_rows
from tasks.data.sources.files import find_files
from tests.helpers.parquet import (
    inputs_of,
    text_columns,
    text_config,
    token_config,
    write_parquet,
    write_table,
)

NUM_ROWS = 300
Columns = dict[str, Any]


def prepared(config: DataConfig, folder: Path) -> tuple[LocalStore, DatasetManifest]:
    store = LocalStore(folder / "store")
    return store, prepare_dataset(config, store, folder / "scratch")


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
        ("broken in line 4", "UTF-8", "0xe9 at position 6", "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW, if that is"),
    ),
    "another separator": (
        "csv",
        b"sample_id;text;domain\na;b;work\n",
        ("'sample_id' is missing", "sample_id;text;domain", "its fields look separated by semicolons"),
    ),
    "tabs in a file of commas": (
        "csv",
        b"sample_id\ttext\tdomain\na\tb\twork\n",
        ("its fields look separated by tabs: call the file .tsv",),
    ),
    "a row in place of a header": (
        "csv",
        b"a,b,work,1\nb,c,travel,2\n",
        (
            "'sample_id' is missing",
            "if the first line is a row already, put a line with the names of the columns before",
        ),
    ),
    "lines that end with CR": (
        "csv",
        (HEADER + GOOD).replace(b"\n", b"\r"),
        ("broken in line 1", "a CR alone in a field without quotes", "tr '\\r' '\\n' < FILE > NEW"),
    ),
    "two bytes a character": (
        "csv",
        (HEADER + GOOD).decode().encode("utf-16"),
        ("broken in line 1", "0xff at position 1", "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    ),
    "an array in place of lines": (
        "json",
        b'[{"sample_id": "a", "text": "b", "domain": "work"}]',
        ("something that is not Parquet", "write each row as a JSON object in a line of its own"),
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
    assert_fails(
        text_config(source), tmp_path, *expected, "expected:", "found:", "what to do:", "No data set was written"
    )


def test_half_of_a_surrogate_pair_is_shown_wherever_in_a_text_it_is(tmp_path: Path) -> None:
    row = {"sample_id": "a", "text": "x" * 90 + "\ud83d", "domain": "work"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    shown = "line 1 has half of a surrogate pair, '\\ud83d', at character 91"
    assert_fails(text_config(tmp_path / "a.jsonl"), tmp_path, "'text'", shown)


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
    assert_fails(text_config(source), tmp_path, f"{source}", "No data set was written")


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
    of_folder = inputs_of(text_config(folder), tmp_path)
    (folder / "notes.csv").write_text("a,b\n")
    with pytest.raises(ConfigurationError, match=r"FOLDER/\*\*/\*\.parquet"):
        find_files(str(folder))
    assert inputs_of(text_config(folder / "**" / "*.parquet"), tmp_path) == of_folder


@pytest.mark.parametrize("kind", ["csv", "feather"])
def test_a_missing_column_is_an_error_before_anything_is_hashed(tmp_path: Path, kind: str) -> None:
    source = write_table(tmp_path / f"a.{kind}", text_columns(30))
    with pytest.raises(ContractError, match=r"Column 'prompt' is missing in a\.\w+\."):
        check_columns(find_files(str(source)), text_config(source, text="prompt"))
    assert_fails(text_config(source, text="prompt"), tmp_path, "Column 'prompt' is missing")
    assert not (tmp_path / "scratch").exists()


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


def test_the_first_rows_are_looked_at_before_the_others_and_said_to_be_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = text_columns(200) | {"length": list(range(200))}
    columns["domain"][150:] = ["one"] * 49 + [None]  # what is wrong with a row that can be read is for the contract
    source = write_table(tmp_path / "a.csv", columns)
    files, config = find_files(str(source)), text_config(source, numeric=["length"])
    check_first_rows(files, config)
    columns["length"] = ["n/a" if row in (7, 190) else str(row) for row in range(200)]
    write_table(source, columns)
    with pytest.raises(ContractError, match=r"found: 2 of 200 rows of .*has 'n/a'; line"):
        check_first_rows(files, config)
    monkeypatch.setattr(check, "NUM_BYTES_LOOKED_AT", 1000)
    with pytest.raises(ContractError, match=r"found: 1 of the first \d\d rows of "):
        check_first_rows(files, config)
    monkeypatch.setattr(check, "NUM_BYTES_LOOKED_AT", 100)
    check_first_rows(files, config)


@pytest.mark.parametrize(("kind", "zone"), [("jsonl", "Z"), ("csv", "Z"), ("jsonl", None), ("csv", None)])
def test_times_that_two_files_write_in_two_ways_are_an_error(tmp_path: Path, kind: str, zone: str | None) -> None:
    """Each file is right by itself, and as numbers of microseconds they could all be compared."""
    folder = tmp_path / "data"
    folder.mkdir()
    plain: list[Any] = [f"2026-01-{1 + i % 28:02d}T00:00:00" for i in range(120)]
    other: list[Any] = [f"{moment}{zone}" if zone else 1_735_689_600 + i for i, moment in enumerate(plain)]
    write_table(folder / f"a.{kind}", text_columns(120) | {"at": plain})
    write_table(folder / f"b.{kind}", text_columns(120, first=120) | {"at": other})
    write_table(folder / f"c.{kind}", text_columns(120, first=240) | {"at": [None] * 120})
    split = {"by": "time", "column": "at"}
    found = f"{'zoned time' if zone else 'whole'} in b.{kind}"
    assert_fails(
        text_config(folder, split=split), tmp_path, "disagree on how times are written", f"time in a.{kind}", found
    )
