"""A mistake in the configuration, a column or a row is said before a command loads what takes seconds, or a server."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.commands import COMMAND, ROOT
from tests.helpers.messages import require_golden
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import s3_environment, upload_folder, use_s3

CONFIGURATION = """
run = "new"

[data]
source = "data"
text = "text"
label = "domain"
kind = "multiclass"
"""
# Nothing answers there: who asks Prefect's server first never comes to the mistake.
NO_SERVER = "http://127.0.0.1:9/api"
HEAVY = {
    "prefect",
    "torch",
    "great_expectations",
    "duckdb",
    "tokenizers",
    "matplotlib",
    "pandas",
    "boto3",
    "httpx",
    "kubernetes",
}
# Runs commands in one process and prints what each raised, and which of the heavy libraries were imported at the end.
SCRIPT = """
import json, sys
from flows.cli import make_app
from storage.errors import HoldfastError
heavy, *commands = json.loads(sys.argv[1])
for command in commands:
    try:
        make_app(command)(command, standalone_mode=False)
    except (HoldfastError, SystemExit) as error:
        print(error)
    print("end of command")
print("imported:", *sorted(set(heavy) & set(sys.modules)))
"""
MISTAKES = {
    "train.stepz=5": "train.stepz: there is no such key",
    "data.source=nowhere": "nowhere does not exist",
    "data.label=dominion": "Column 'dominion' is missing in part-0.parquet",
    "data.label=length": "has the wrong type",
    "store=ftp://host/store": "expected s3://bucket/prefix, or the path of a folder",
    "data.source=quote.csv": "quote.csv is broken in line 3",
    "data.source=later.csv": "later.csv is broken in line 1,002",
    "data.source=latin.csv": "the byte 0xe9 at position 6 of the line",
    "data.source=text.jsonl": "line 2 has 7",
    "store=run.toml/store": "Cannot write to the store",
    "scratch=run.toml/scratch": "Cannot write working files in",
}
LINES = {
    "quote.csv": b'text,domain\na,work\nb,"work\n',
    "later.csv": b"text,domain\n" + b"a,work\n" * 1000 + b'"b"c,work\n',
    "latin.csv": b"text,domain\na caf\xe9,work\n",
    "text.jsonl": b'{"text": "a", "domain": "work"}\n{"text": 7, "domain": "work"}\n',
}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A configuration with data, in which one thing will be wrong."""
    columns = text_columns(20)
    for index in range(2):
        write_parquet(tmp_path / "data" / f"part-{index}.parquet", columns | {"length": [0.5] * 20})
    for name, content in LINES.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / "run.toml"
    path.write_text(CONFIGURATION)
    return path


def call(
    commands: Sequence[Sequence[str]], heavy: set[str], folder: Path, environment: dict[str, str] | None = None
) -> tuple[list[str], list[str], str]:
    """What each command said on stdout, the heavy libraries that were imported, and what they said on stderr."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([sorted(heavy), *commands])],
        env={"PYTHONPATH": str(ROOT), "PREFECT_API_URL": NO_SERVER, "PATH": "/usr/bin:/bin", **(environment or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    *said, rest = result.stdout.split("end of command\n")
    assert (result.returncode, len(said)) == (0, len(commands)), result.stdout + result.stderr
    return said, rest.removeprefix("imported:").split(), result.stderr


@pytest.mark.parametrize("command", ["run", "drill"])
def test_a_mistake_is_said_before_a_library_is_imported_or_a_server_asked(configuration: Path, command: str) -> None:
    commands = [(command, str(configuration), "--set", assignment) for assignment in MISTAKES]
    said, imported, stderr = call(commands, HEAVY, configuration.parent)
    for expected, found in zip(MISTAKES.values(), said, strict=True):
        assert expected in found
    assert imported == []
    assert stderr.startswith(f"Reading the configuration {configuration}.\n")
    assert stderr.splitlines().count(f"Reading the configuration {configuration}.") == len(commands)


def test_a_mistake_in_a_bucket_is_said_before_more_is_imported_than_it_needs(
    configuration: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    place = upload_folder(configuration.parent / "data").removesuffix("/data/")
    mistakes = {
        (f"{place}/data/", "dominion"): "Column 'dominion' is missing in part-0.parquet",
        (f"{place}/**/*.parquet", "length"): f"found: double in {place}/data/part-0.parquet",
        (f"{place}/date", "domain"): f"there is nothing at {place}/date. There is {place}/data.",
    }
    commands = [
        ("run", str(configuration), "--set", f"data.source={source}", "--set", f"data.label={label}")
        for source, label in mistakes
    ]
    to_no_bucket = ("run", str(configuration), "--set", "store=s3://no-such-bucket/store")
    environment = s3_environment(s3_endpoint)
    (*said, of_bucket), imported, _ = call([*commands, to_no_bucket], HEAVY, configuration.parent, environment)
    require_golden("a-bucket-that-is-not-there", of_bucket, configuration.parent, ENDPOINT=s3_endpoint)
    for expected, found in zip(mistakes.values(), said, strict=True):
        assert expected in found
    assert imported == ["boto3"]


def test_the_first_line_is_said_before_the_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "[red]none[/red] :cat:.toml"  # nothing in a path is markup
    result = subprocess.run([*COMMAND, "run", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    first, second = result.stderr.splitlines()
    assert first == f"Reading the configuration {path}."
    assert second.startswith(f"Error: Cannot read the configuration {path}")


def test_help_loads_no_library_that_takes_seconds(tmp_path: Path) -> None:
    said, imported, stderr = call([["--help"], ["-h"], ["run", "-h"], ["--version"]], HEAVY | {"pyarrow"}, tmp_path)
    assert (imported, stderr) == ([], "")
    assert all(text.startswith("Usage: ") for text in said[:3]) and said[3].startswith("holdfast 0.")
