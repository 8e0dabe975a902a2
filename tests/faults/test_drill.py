"""`holdfast drill` from outside: it kills a real run, and what it then says of it is true."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import HoldfastError, SegmentFailedError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.corpora.generate import generate_corpus
from tasks.drills.started_run import StartedRun
from tests.helpers.commands import COMMAND, ROOT, Runner, call_here, processes_mentioning, wait_until

CONFIGURATION = ROOT / "deployments/configs/demo.toml"
STEPS = 160
SETTINGS = {
    "train.steps": STEPS,
    "train.batch_size": 16,
    "train.ranks": 1,
    "train.device": "cpu",
    "model.width": 32,
    "model.layers": 1,
    "data.vocabulary_size": 600,
    "data.max_tokens": 64,
    "checkpoint.every_steps": 20,
    "validation.every_steps": 60,
    "retry.delay_seconds": 0.1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drill")


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    """All tests have one store too: the data set is prepared once."""
    corpus = folder / "corpus"
    generate_corpus(corpus, "policy", 1500)
    Runner(CONFIGURATION, {**SETTINGS, "data.source": corpus, "store": folder / "store"}).prepare()
    return corpus


@pytest.fixture
def store(folder: Path) -> Iterator[Path]:
    yield folder / "store"
    assert processes_mentioning(str(folder)) == []


@pytest.fixture
def line(corpus: Path, store: Path) -> list[str]:
    """The command, up to the options of the drill."""
    settings = {**SETTINGS, "data.source": corpus, "store": store}
    assignments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return [*COMMAND, "drill", str(CONFIGURATION), *assignments]


def test_a_run_killed_and_continued_on_another_world_size_holds(
    corpus: Path, store: Path, prefect_server: dict[str, str]
) -> None:
    # The seed aims at step 39 of 160: also on a quicker machine the run is not over then.
    options = ["--kills", "1", "--world-sizes", "2,1", "--seed", "20", "--json"]
    runner = Runner(CONFIGURATION, {**SETTINGS, "data.source": corpus, "store": store}, prefect_server)
    done = runner.call("drill", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ok"] and result["exact"]
    comparison = result["comparison"]
    assert comparison["samples_equal"] and comparison["weights_equal"] and comparison["metrics_equal"]
    assert comparison["weights_sha256"][0] == comparison["weights_sha256"][1]
    assert comparison["validation_loss_max_difference"] == 0 and comparison["distance"]["relative_l2"] == 0

    # What it says of the kills is what the manifest says, and the segments could not have ended otherwise.
    segments = Manifest(LocalStore(store), "demo-drill-1-interrupted").load_head().state.segments
    assert [(segment.outcome, segment.world_size) for segment in segments] == [("lost", 2), ("completed", 1)]
    assert segments[0].last_step >= 39
    (alone,) = result["rank_kills"]
    assert (alone["fence"], alone["world_size"], alone["trained_on"]) == (segments[0].fence, 2, True)
    assert [(kill["fence"], kill["world_size"]) for kill in result["kills"]] == [(segments[0].fence, 2)]
    straight = Manifest(LocalStore(store), "demo-drill-1-straight").load_head().state
    assert [segment.outcome for segment in straight.segments] == ["completed"]
    assert straight.promoted is not None and straight.promoted.weights_sha256 == comparison["weights_sha256"][0]
    assert Manifest(LocalStore(store), "demo").find_head() is None  # the user's own run is not touched

    page = Path(result["page"]).read_text()
    assert "bit for bit" in page and comparison["weights_sha256"][0] in page
    assert not re.search(r"<(script|link|iframe|object|base)\b", page) and not re.findall(r"(?:https?:)?//\w", page)


@pytest.mark.slow
def test_with_fast_sums_a_rank_that_is_killed_ends_its_segment_and_the_samples_are_the_same(
    line: list[str], prefect_server: dict[str, str]
) -> None:
    sums = [*line, "--set", "run=fast", "--set", "train.sum=fast", "--set", "retry.attempts=0"]
    options = ["--kills", "1", "--world-sizes", "2", "--seed", "20", "--json"]
    done = subprocess.run([*sums, *options], env=prefect_server, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert not result["exact"] and result["comparison"]["samples_equal"]
    assert [kill["trained_on"] for kill in result["rank_kills"]] == [False, False]
    assert "one rank alone was killed 2 times: the segment ended" in " ".join(result["verdict"]["remarks"]).lower()
    outcomes = [segment["outcome"] for segment in result["runs"]["interrupted"]["segments"]]
    assert outcomes == ["failed", "lost", "failed", "completed"]


@pytest.mark.slow
def test_ctrl_c_stops_the_drill_and_the_run_that_it_started(
    line: list[str], tmp_path: Path, store: Path, prefect_server: dict[str, str]
) -> None:
    log = tmp_path / "log"
    command = [*line, "--set", "run=stopped"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=prefect_server, cwd=ROOT, stdout=output, stderr=output)
    ranks = "/runs/stopped-drill-1-straight/"  # their specification stands there
    assert wait_until(lambda: bool(processes_mentioning(ranks)), process), log.read_text()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 128 + signal.SIGINT, log.read_text()
    assert processes_mentioning(str(store)) == []
    assert "Traceback" not in log.read_text()
    head = Manifest(LocalStore(store), "stopped-drill-1-straight").load_head()
    assert head.state.lease is None  # it was not killed: it left in good order


def test_what_the_started_run_has_to_say_is_what_the_drill_raises(tmp_path: Path) -> None:
    with StartedRun(tmp_path / "missing.toml", []) as run:
        with pytest.raises(HoldfastError, match=r"^Cannot read the configuration") as raised:
            run.require_success()
        assert not isinstance(raised.value, SegmentFailedError)
    with StartedRun(CONFIGURATION, []) as run:
        run.kill()
        with pytest.raises(SegmentFailedError, match="ended with signal 9"):
            run.require_success()


def test_world_sizes_that_cannot_be_are_one_message_before_anything_is_done(line: list[str], tmp_path: Path) -> None:
    store = tmp_path / "none"
    done = call_here([*line[len(COMMAND) :], "--set", f"store={store}", "--world-sizes", "2,5"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: World sizes 2,5: train.microbatches = 4" in done.stderr and "Traceback" not in done.stderr
    assert not any(path.is_file() for path in store.rglob("*"))  # a command tries whether it can write there
