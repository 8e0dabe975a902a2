"""The command `scrub` over a folder and over a bucket, from outside."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from tests.helpers.commands import COMMAND, ROOT, call_here
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.s3_server import open_s3_store, s3_environment, use_s3

CONFIGURATION = """
run = "run"
store = "STORE"

[data]
text = "text"
label = "domain"
kind = "multiclass"
"""


@dataclass(frozen=True)
class Kept:
    """A store with a run in it, and the environment in which commands find it."""

    store: Store
    environment: dict[str, str]

    def scrub(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return call_here(["scrub", *arguments])

    def scrub_in_a_process(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, "scrub", *arguments],
            env={**os.environ, "COLUMNS": "100", **self.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def flip(self, key: str) -> None:
        data = self.store.read(key)
        self.store.write(key, data[:-1] + bytes([data[-1] ^ 1]))


def unfolded(text: str) -> str:
    """Without the spaces and line ends that a narrow terminal puts in."""
    return "".join(text.split())


@pytest.fixture
def in_a_folder(tmp_path: Path) -> Kept:
    store = LocalStore(tmp_path / "store")
    make_kept_run(store, tmp_path)
    return Kept(store, {})


@pytest.fixture
def in_a_bucket(tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Kept:
    use_s3(monkeypatch, s3_endpoint)
    store = open_s3_store(tmp_path)
    make_kept_run(store, tmp_path)
    return Kept(store, {**s3_environment(s3_endpoint), "TMPDIR": str(tmp_path)})


@pytest.fixture(params=["in_a_folder", "in_a_bucket"])
def kept(request: pytest.FixtureRequest) -> Kept:
    found: Kept = request.getfixturevalue(request.param)
    return found


def test_rot_is_told_with_its_file_and_quarantined_and_the_exit_code_says_it(kept: Kept) -> None:
    newest = Manifest(kept.store, "run").load_head().state.kept[0]
    kept.flip(f"{newest.path}/state.json")
    result = kept.scrub(kept.store.address, "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    (rot,) = found["damaged"]
    assert (rot["run"], rot["step"], rot["is_quarantined"]) == ("run", 30, True)
    assert rot["resource"] == f"{kept.store.address}/{newest.path}"
    assert f"{newest.path}/state.jsonwaschanged" in unfolded(result.stderr)
    state = Manifest(kept.store, "run").load_head().state
    assert [record.step for record in state.kept] == [20, 10]

    again = kept.scrub_in_a_process(f"{kept.store.address}/runs/run")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("SOUND  1 run, 2 checkpoints, ")
    assert "all as they were written" in again.stdout
    assert f"\n{kept.store.address}\n" in again.stdout


def test_rot_in_the_data_set_is_told_to_a_person(in_a_folder: Kept) -> None:
    key = next(key for key in in_a_folder.store.list_keys("datasets/") if key.endswith("train-00000.parquet"))
    in_a_folder.flip(key)
    result = in_a_folder.scrub(in_a_folder.store.address)
    assert result.returncode == 1
    assert result.stdout.startswith("ROTTEN  1 run, 3 checkpoints, ")
    assert "1 damaged thing" in result.stdout
    assert "train-00000.parquetwaschanged" in unfolded(result.stdout)
    assert "preparedagain,byteforbyte" in unfolded(result.stderr)


def test_a_configuration_names_one_run_and_what_is_not_there_is_one_clear_error(
    in_a_folder: Kept, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(CONFIGURATION.replace("STORE", in_a_folder.store.address))
    result = in_a_folder.scrub(str(path), "--json", "--megabytes-per-second", "50")
    assert json.loads(result.stdout)["runs"] == ["run"]
    for arguments, words in (
        ((str(path), "--set", "run=other"), "There is no run 'other'"),
        ((str(tmp_path / "nowhere"),), "There are no runs in"),
    ):
        result = in_a_folder.scrub(*arguments)
        assert result.returncode == 2
        assert words in result.stderr and "Traceback" not in result.stderr
