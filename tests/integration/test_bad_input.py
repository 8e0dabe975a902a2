"""Every mistake of the user's ends in one message that says what to do, at once, and leaves everything as it was."""

import inspect
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from storage.errors import HoldfastError
from storage.objects.digests import sha256_of_file
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import SegmentRecord
from storage.runs.transitions import end_segment, promote
from tasks.config.load import load_configuration
from tasks.data.pipeline import prepare_dataset
from tasks.prepare import prepare_data
from tasks.recover import recover
from tasks.run_paths import open_run_paths
from tests.helpers.commands import COMMAND, Runner, call_here
from tests.helpers.messages import require_golden, require_message
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import find_free_port
from tests.helpers.runs import lease_run, make_checkpoint, record_of

NUM_ROWS = 120
STEPS = 4
# Longer than `Runner.call` waits for a command: a mistake that is tried again is one that never comes back.
RETRY_SECONDS = 3600

CONFIGURATION = f"""
run = "trained"
store = "STORE"

[data]
source = "SOURCE"
text = "text"
id = "sample_id"
label = "domain"
kind = "multiclass"
classes = ["billing", "travel", "work"]
vocabulary_size = 300
max_tokens = 64
row_group_rows = 16
shard_rows = 64

[model]
width = 16
layers = 1
heads = 2
feedforward = 32

[train]
steps = {STEPS}
batch_size = 12

[checkpoint]
every_steps = 2

[retry]
delay_seconds = {RETRY_SECONDS}
"""

# What the program was doing, then the error: nothing of a library's, and nothing after it.
ERROR = re.compile(
    r"(Reading the configuration [^\n]*\n)?(Checking the columns [^\n]*\n)?(Starting Prefect\.\n)?"
    r"(\[[\d:]+\] (The source has|Preparing the data:) [^\n]*\n)*Error: (?P<message>.*)\n",
    re.DOTALL,
)

Columns = dict[str, Any]

prepare_work, recover_work = inspect.unwrap(prepare_data), inspect.unwrap(recover)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the user has: a configuration, two Parquet files, and the store."""
    folder = tmp_path_factory.mktemp("user")
    write_parquet(folder / "data" / "part-0.parquet", text_columns(NUM_ROWS))
    write_parquet(folder / "data" / "part-1.parquet", text_columns(NUM_ROWS, first=NUM_ROWS))
    text = CONFIGURATION.replace("STORE", str(folder / "store")).replace("SOURCE", str(folder / "data"))
    (folder / "run.toml").write_text(text)
    (folder / "file").write_text("a file, not a folder")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path, prefect_server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A run whose last step is promoted; the mistakes are made beside it and on it."""
    config = load_configuration(folder / "run.toml")
    run_paths = open_run_paths(config)
    recover_work(config, prepare_dataset(config.data, run_paths.store, run_paths.data_scratch))
    fence = lease_run(run_paths.manifest)
    checkpoint = make_checkpoint(run_paths.store, tmp_path_factory.mktemp("files"), STEPS, fence, run="trained")
    run_paths.manifest.commit("promoted", promote(record_of(checkpoint), RetentionPolicy(newest=1)))
    ended = SegmentRecord(
        fence=fence, outcome="completed", cause="", first_step=0, last_step=STEPS, world_size=1,
        planned_steps=1000, started_at=0.0,
        seconds=0.0, steps_lost=0, phases={},
    )  # fmt: skip
    run_paths.manifest.commit("ended", end_segment(ended))
    return Runner(folder / "run.toml", {"run": "trained", "store": folder / "store"}, prefect_server)


@pytest.fixture
def source_file(folder: Path) -> Iterator[Path]:
    """A file of the trained run's data, which is put back after the test."""
    path = folder / "data" / "part-1.parquet"
    before, times = path.read_bytes(), path.stat()
    yield path
    path.write_bytes(before)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def refuse(trained: Runner, command: str, *arguments: str, given: Path | None = None, **settings: Any) -> str:
    """The one message with which a command is refused, after which everything is as it was before.

    What is `given` stands in place of the configuration file, without the run's settings. What is refused before any
    Prefect is started needs no process of its own.
    """
    runner = trained if given is None else Runner(given, {}, trained.environment)
    with nothing_changed(trained):
        return message_of(call_here(runner.line(command, *arguments, **settings)[len(COMMAND) :]))


def refuse_in_a_process(trained: Runner, **settings: Any) -> str:
    """As `refuse`, for `holdfast run` as a user starts it."""
    with nothing_changed(trained):
        return message_of(trained.call("run", **settings))


def refuse_to_prepare(trained: Runner, **settings: Any) -> str:
    """As `refuse`, by the first task of the flow, without Prefect, which tells one refusal as it tells another."""
    line = trained.line("run", **settings)
    with nothing_changed(trained), pytest.raises(HoldfastError) as refused:
        prepare_work(load_configuration(trained.configuration, line[line.index("--set") + 1 :: 2]))
    return str(refused.value)


def message_of(result: "subprocess.CompletedProcess[str]") -> str:
    assert result.returncode == 2, result.stderr
    assert result.stdout == "" or json.loads(result.stdout).keys() == {"error"}
    said = ERROR.fullmatch(result.stderr)
    assert said is not None, result.stderr
    assert result.stderr.count("Error") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return said["message"]


@contextmanager
def nothing_changed(trained: Runner) -> Iterator[None]:
    """What the user has is the same after the block, no file of a preparation is left, and no run more is there."""
    folder = trained.configuration.parent
    before = contents_of(folder)
    yield
    assert contents_of(folder) == before
    assert list((folder / "store").glob(".tmp/scratch/data/prepare-*")) == []
    assert [path.name for path in (folder / "store" / "runs").iterdir()] == ["trained"]


def contents_of(folder: Path) -> dict[str, str]:
    """The digest of every file in a folder, but of those under way."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".tmp" not in path.relative_to(folder).parts]
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def assert_says(message: str, *expected: str) -> None:
    missing = [text for text in expected if text not in message]
    assert not missing, f"not said: {missing}\n{message}"


def with_value(column: str, value: Any) -> Callable[[Path, Columns], None]:
    """Row 7 of the second file with another value."""

    def write(path: Path, columns: Columns) -> None:
        values = list(columns[column])
        values[7] = value
        write_parquet(path, columns | {column: values})

    return write


def write_renamed(path: Path, columns: Columns) -> None:
    write_parquet(path, {name.replace("text", "prompt_text"): values for name, values in columns.items()})


def write_half(path: Path, columns: Columns) -> None:
    write_parquet(path, columns)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# One of the schema, one of the values, one of a file: `test_bad_data.py` has all there are.
DATA_MISTAKES: dict[str, tuple[Callable[[Path, Columns], None], tuple[str, ...]]] = {
    "a missing column": (
        write_renamed,
        ("Column 'text' is missing in part-1.parquet", "did you mean 'prompt_text'", "set data.text"),
    ),
    "a truncated file": (
        write_half,
        ("data/part-1.parquet cannot be read", "cut off or damaged", "write or copy it again"),
    ),
    "an id twice": (
        with_value("sample_id", "s00003"),
        ("Column 'sample_id'", "duplicate ids", "'s00003' in 2 rows", "drop the repeated rows"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_a_mistake_in_the_data(trained: Runner, tmp_path: Path, mistake: str) -> None:
    write, expected = DATA_MISTAKES[mistake]
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(NUM_ROWS))
    write(tmp_path / "data" / "part-1.parquet", text_columns(NUM_ROWS, first=NUM_ROWS))
    # The values are looked at by the flow, the rest before it.
    refused = refuse_in_a_process if mistake == "an id twice" else partial(refuse, command="run")
    message = refused(trained, run="new", data__source=tmp_path / "data")
    assert_says(message, *expected, "expected:", "found:", "what to do:", "No data set was written.")


def test_a_store_and_a_scratch_that_cannot_be_written(trained: Runner, folder: Path) -> None:
    """The flow looks at them too, of which a deployment has no command before it; the data set may be there already."""
    message = refuse_to_prepare(trained, run="new", store="/proc/store")
    assert_says(message, "Cannot write to the store /proc/store", "Check that its folder", "then run again")
    message = refuse_to_prepare(trained, run="new", scratch=folder / "file/scratch")
    assert_says(message, f"Cannot write working files in {folder / 'file/scratch'}", "or set scratch to another one")


def test_a_prefect_server_that_is_not_there(trained: Runner) -> None:
    address = f"http://127.0.0.1:{find_free_port()}/api"
    message = refuse_in_a_process(replace(trained, environment={**trained.environment, "PREFECT_API_URL": address}))
    assert_says(message, f"PREFECT_API_URL is {address}", "no Prefect server answers there", "or unset it")
    assert_says(message, "no connection could be made")


def test_a_changed_file_when_a_run_is_to_go_on(trained: Runner, folder: Path, source_file: Path) -> None:
    with_value("text", "another text")(source_file, text_columns(NUM_ROWS, first=NUM_ROWS))
    require_golden("other-data-of-a-run", refuse_to_prepare(trained, train__steps=8), folder)


def test_a_row_more_and_a_file_more_when_a_run_is_to_go_on(trained: Runner, source_file: Path) -> None:
    added = source_file.with_name("part-2.parquet")
    pq.write_table(pq.read_table(source_file).slice(0, 1), added)
    write_parquet(source_file, text_columns(NUM_ROWS + 1, first=NUM_ROWS))
    try:
        message = refuse_to_prepare(trained, train__steps=8)
    finally:
        added.unlink()
    assert_says(message, "The data of run 'trained' changed", "Restore the data")
    assert_says(message, "file part-1.parquet: content changed", "file part-2.parquet: new")


def test_a_changed_configuration_when_a_run_is_to_go_on(trained: Runner, folder: Path) -> None:
    changes = {"model__width": 32, "train__learning_rate": 0.1, "data__max_tokens": 128, "train__steps": 8}
    message = refuse_in_a_process(trained, **changes)
    require_golden("another-model-of-a-run", message, folder)
    assert "train.steps" not in message  # more steps are no mistake
    require_golden("another-rate-of-a-run", refuse(trained, "run", train__learning_rate=0.1), folder)


def test_fewer_steps_than_were_made(trained: Runner, folder: Path) -> None:
    require_golden("fewer-steps-of-a-run", refuse(trained, "run", train__steps=3), folder)


RUN_MISTAKES = {
    "export-of-a-step-that-is-not-kept": ("export", "model", "--checkpoint", "3"),
    "export-of-a-checkpoint-that-is-no-step": ("export", "model", "--checkpoint", "latest"),
    "export-into-a-folder-with-files": ("export", "data"),
    "evaluate-a-split-that-there-is-not": ("evaluate", "--split", "dev"),
    "evaluate-a-source-that-is-not-there": ("evaluate", "--checkpoint", "newest", "--source", "new.csv"),
    "evaluate-a-split-and-a-source": ("evaluate", "--split", "test", "--source", "new.csv"),
    "logs-of-a-rank-that-there-is-not": ("logs", "--rank", "7"),
    "drill-without-kills": ("drill", "--kills", "0"),
}


@pytest.mark.parametrize("name", RUN_MISTAKES)
def test_a_mistake_with_a_run_that_is_there(
    trained: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, *arguments = RUN_MISTAKES[name]
    monkeypatch.chdir(folder)
    require_message(name, folder, [command, "run.toml", *arguments])


SETTING_MISTAKES: dict[str, tuple[str, ...]] = {
    "train.stepz=5": ("run.toml is wrong", "train.stepz: there is no such key; did you mean steps?"),
    "train.steps": ("--set takes key=value, for instance train.steps=500", "found 'train.steps'"),
    "train.steps=many": ("train.steps: must be a whole number (found 'many')",),
    "train=5": ("train: must be a section with keys of its own",),
    "store=": ("store: must have at least 1 character",),
    "store=s3://bucket:9000/prefix": ("is not an address of the form s3://bucket/prefix", "AWS_ENDPOINT_URL_S3"),
    "store=~nobody-of-that-name/store": ("no user of that name is known", "Write the path without ~"),
}


@pytest.mark.parametrize("assignment", SETTING_MISTAKES)
def test_a_mistake_in_a_setting(trained: Runner, assignment: str) -> None:
    key, separator, value = assignment.partition("=")
    for command in ("run", "status"):
        # A key that the runner sets, too, is set after the arguments.
        setting: dict[str, Any] = {key: value}
        message = refuse(trained, command, **setting) if separator else refuse(trained, command, "--set", key)
        assert_says(message, *SETTING_MISTAKES[assignment])


@pytest.mark.parametrize("command", ["status", "verify"])
def test_an_address_that_no_file_system_can_have(trained: Runner, folder: Path, command: str) -> None:
    message = refuse(trained, command, given=folder / ("x" * 300) / "runs" / "trained")
    assert_says(message, "There is no run 'trained'", "Check the address")


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_run_that_is_not_there(trained: Runner, folder: Path, command: str) -> None:
    for message in (
        refuse(trained, command, run="other"),
        refuse(trained, command, "--json", run="other"),
        refuse(trained, command, given=folder / "store/runs/other"),
        refuse(trained, command, given=folder / "store/runs/trained", run="other"),
    ):
        assert_says(message, f"There is no run 'other' in {folder / 'store'}", "start it with `holdfast run`")


@pytest.mark.parametrize("command", ["status", "verify"])
@pytest.mark.parametrize("nonsense", ["run.tom", "store/runs", "x" * 300])
def test_an_argument_that_means_no_run(trained: Runner, folder: Path, command: str, nonsense: str) -> None:
    message = refuse(trained, command, given=folder / nonsense)
    assert_says(message, "neither a configuration file that is there nor a run's address", "Give a TOML file")


@pytest.mark.parametrize("arguments", [[], ["CONFIG", "other"], ["CONFIG", "--steps", "5"]], ids=" ".join)
def test_a_command_that_is_not_complete_or_has_too_much(trained: Runner, arguments: list[str]) -> None:
    given = [str(trained.configuration) if argument == "CONFIG" else argument for argument in arguments]
    for command in ("run", "status", "verify"):
        result = call_here([command, *given])
        assert (result.returncode, result.stdout) == (2, "")
        assert_says(result.stderr, f"Usage: holdfast {command}", f"Try 'holdfast {command} -h'", "\nError: ")
        assert "Traceback" not in result.stderr


def test_a_corpus_into_a_folder_with_files_or_behind_a_file(trained: Runner, folder: Path) -> None:
    options = ("--job", "policy", "--rows", "8")
    message = refuse(trained, "corpus", *options, given=folder / "data")
    assert_says(message, f"{folder / 'data'} has files in it already", "they stay as they are", "Name another folder")
    message = refuse(trained, "corpus", *options, given=folder / "file" / "corpus")
    assert_says(message, f"{folder / 'file' / 'corpus'} cannot be one: Not a directory", "Name another one")


def test_a_corpus_with_a_setting_that_is_not_there(trained: Runner, tmp_path: Path) -> None:
    given = tmp_path / "corpus"
    message = refuse(trained, "corpus", "--job", "policy", "--rows", "8", given=given, seeds=3)
    assert_says(message, "The configuration of the corpus is wrong", "seeds: there is no such key; did you mean seed?")
    assert not given.exists()
