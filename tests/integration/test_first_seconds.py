"""A mistake in the configuration or in a column is said before anything is started or loaded that takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import COMMAND, ROOT
from tests.helpers.parquet import text_columns, write_parquet

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
HEAVY = {"prefect", "torch", "great_expectations", "duckdb", "tokenizers", "matplotlib", "pandas", "boto3", "httpx"}
# Runs a command in this process and prints what it raised, and which of the heavy libraries were imported by then.
SCRIPT = """
import sys
from flows.cli import app
from storage.errors import HoldfastError
try:
    app(sys.argv[2:], standalone_mode=False)
except HoldfastError as error:
    print(error)
print("imported:", *sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""
MISTAKES = {
    "train.stepz=5": "train.stepz: there is no such key",
    "data.source=nowhere": "nowhere does not exist",
    "data.label=dominion": "Column 'dominion' is missing in part-0.parquet",
    "data.label=length": "has the wrong type",
    "store=ftp://host/store": "expected s3://bucket/prefix, or the path of a folder",
}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A configuration with data, in which one thing will be wrong."""
    columns = text_columns(20)
    for index in range(2):
        write_parquet(tmp_path / "data" / f"part-{index}.parquet", columns | {"length": [0.5] * 20})
    path = tmp_path / "run.toml"
    path.write_text(CONFIGURATION)
    return path


@pytest.mark.parametrize("command", ["run", "drill"])
@pytest.mark.parametrize("assignment", MISTAKES)
def test_a_mistake_is_said_before_a_library_is_imported_or_a_server_asked(
    configuration: Path, command: str, assignment: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(HEAVY), command, str(configuration), "--set", assignment],
        env={"PYTHONPATH": str(ROOT), "PREFECT_API_URL": NO_SERVER, "PATH": "/usr/bin:/bin"},
        cwd=configuration.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said, _, imported = result.stdout.rpartition("imported:")
    assert MISTAKES[assignment] in said, result.stdout + result.stderr
    assert imported.split() == []
    assert result.stderr.startswith(f"Reading the configuration {configuration}.\n")


def test_the_first_line_is_said_before_the_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "[red]none[/red] :cat:.toml"  # nothing in a path is markup
    result = subprocess.run([*COMMAND, "run", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    first, second = result.stderr.splitlines()
    assert first == f"Reading the configuration {path}."
    assert second.startswith(f"Error: Cannot read the configuration {path}")


def test_help_loads_no_library_that_takes_seconds() -> None:
    script = SCRIPT.replace("except HoldfastError as error:", "except (HoldfastError, SystemExit) as error:")
    for arguments in (["--help"], ["-h"], ["run", "-h"], ["--version"]):
        result = subprocess.run(
            [sys.executable, "-c", script, ",".join(HEAVY | {"pyarrow"}), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.endswith("imported:\n")
        assert result.stdout.startswith("holdfast 0." if arguments == ["--version"] else "Usage: ")
