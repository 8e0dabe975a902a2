"""`make demo`: it deletes what it made itself and nothing else, and preempts the run that it shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import demo
from flows.demo import MARKER, empty_store
from storage.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
# In place of `holdfast run`: promotes a checkpoint of step 34 of 100 and lives until it is told to stop.
TRAIN = """
import signal, sys
from pathlib import Path
from storage.objects.local_store import LocalStore
from storage.runs.retention import RetentionPolicy
from storage.runs.transitions import promote
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of

signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
folder = Path(sys.argv[1])
store = LocalStore(folder / "store")
manifest = make_run(store)
found = make_checkpoint(store, folder / "files", 34, lease_run(manifest))
manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=1)))
signal.pause()
"""
DONE = "import sys"
CHECKS = ("verify", "audit", "status")
CONFIGURATION = """
run = "run"
store = "store"

[data]
source = "."
text = "text"
label = "label"
kind = "binary"

[train]
steps = 100
"""


def test_a_store_that_the_demonstration_did_not_make_stays_as_it_is(tmp_path: Path) -> None:
    precious = tmp_path / "store" / "runs" / "mine" / "model"
    precious.parent.mkdir(parents=True)
    precious.write_text("weights")
    with pytest.raises(ConfigurationError, match=r"has files that `make demo` did not make.*Nothing was deleted"):
        empty_store(str(tmp_path / "store"))
    assert precious.read_text() == "weights"


def test_a_store_that_the_demonstration_made_is_emptied_by_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "demo" / "store"
    for _ in range(2):
        empty_store(str(store))
        assert [path.name for path in store.iterdir()] == [MARKER]
        (store / "runs" / "demo").mkdir(parents=True)
        (store / "probe").write_text("a file")


def test_what_a_link_in_the_store_points_to_is_not_the_stores(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("rows")
    empty_store(str(tmp_path / "store"))
    (tmp_path / "store" / "link").symlink_to(data)
    empty_store(str(tmp_path / "store"))
    assert (data / "rows").read_text() == "rows" and not (tmp_path / "store" / "link").exists()


def test_a_folder_that_is_empty_can_be_the_store(tmp_path: Path) -> None:
    empty_store(str(tmp_path))
    assert (tmp_path / MARKER).is_file()


def test_a_bucket_is_not_emptied(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a store in a folder"):
        empty_store("s3://bucket/prefix")


class Commands:
    """In place of the command `holdfast`: each is a process of its own, which runs the next of some scripts."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self.asked: list[str] = []
        self._folder = folder
        self._scripts = iter(scripts)

    def __call__(self, *arguments: str) -> "subprocess.Popen[bytes]":
        self.asked.append(" ".join(arguments))
        line = [sys.executable, "-c", next(self._scripts), str(self._folder)]
        return subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "demo.toml"
    path.write_text(CONFIGURATION)
    monkeypatch.setattr(demo, "CONFIGURATION", path)
    monkeypatch.setattr(demo, "POLL_SECONDS", 0.01)
    return path


def test_the_run_is_preempted_at_a_third_and_goes_on_on_one_rank_and_the_page_is_named_at_the_end(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(configuration.parent, TRAIN, *[DONE] * 4)
    monkeypatch.setattr(demo, "_command", commands)
    demo.main()
    run = f"run {configuration}"
    assert commands.asked == [run, f"{run} --set train.ranks=1", *(f"{c} {configuration}" for c in CHECKS)]
    last_words = capfd.readouterr().err.split("\n\n")[-2:]
    assert last_words[0] == f"Open this page: {configuration.parent}/store/runs/run/report.html"
    assert "Next, your own data: `.venv/bin/holdfast config > run.toml`" in last_words[1]


def test_a_run_that_ends_before_it_is_preempted_ends_the_demonstration(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(configuration.parent, DONE)
    monkeypatch.setattr(demo, "_command", commands)
    with pytest.raises(SystemExit) as left:
        demo.main()
    assert left.value.code == 1 and commands.asked == [f"run {configuration}"]
    assert "The run ended before it could be preempted" in capfd.readouterr().err
