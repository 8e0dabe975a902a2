"""A run that is interrupted and continued by the same command ends as one that nothing interrupted."""

import contextlib
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.objects.addresses import find_run_address
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.audits.verdict import audit_run
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import ROOT, RUN_SECONDS, Runner, kill_everything, processes_mentioning, wait_until

# Long enough that a fault aimed at the first half of a run never finds it over, also on a quicker machine.
STEPS = 150
SETTINGS = {
    "train__steps": STEPS,
    "train__batch_size": 48,
    "train__ranks": 1,
    "model__width": 32,
    "model__layers": 1,
    "data__vocabulary_size": 600,
    "data__max_tokens": 64,
    "checkpoint__every_steps": 10,
    "validation__every_steps": 45,
    "retry__delay_seconds": 0.1,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "policy"
    generate_corpus(folder, "policy", 2500)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "store"


@pytest.fixture(scope="module")
def settings(corpus: Path, store: Path) -> dict[str, Any]:
    return {"data__source": corpus, "store": store, **SETTINGS}


@pytest.fixture(scope="module")
def uninterrupted(settings: dict[str, Any], prefect_server: dict[str, str]) -> dict[str, Any]:
    runner = make_runner(settings, prefect_server, "uninterrupted")
    runner.run()
    return runner.status()


@pytest.fixture
def runner(
    request: pytest.FixtureRequest, settings: dict[str, Any], prefect_server: dict[str, str]
) -> Iterator[Runner]:
    made = make_runner(settings, prefect_server, re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:60])
    yield made
    for pid in processes_mentioning(f"run={made.settings['run']}"):
        kill_everything_by_pid(pid)


def make_runner(settings: dict[str, Any], environment: dict[str, str], run: str) -> Runner:
    return Runner(ROOT / "deployments/configs/demo.toml", {**settings, "run": run}, environment)


def kill_everything_by_pid(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def assert_same_model(status: dict[str, Any], expected: dict[str, Any]) -> None:
    assert status["state"] == "completed"
    assert status["promoted"]["weights_sha256"] == expected["promoted"]["weights_sha256"]
    assert status["metrics"] == expected["metrics"]
    assert status["dataset_digest"] == expected["dataset_digest"]
    address = find_run_address(status["address"])
    assert address is not None
    audit = audit_run(*address)
    assert audit["ok"] and audit["steps"] == STEPS, audit["violations"]
    assert sum(end - first for segment in audit["segments"] for first, end in [segment["counted"] or (0, 0)]) == STEPS


def test_killed_at_a_random_moment_on_any_number_of_ranks(runner: Runner, uninterrupted: dict[str, Any]) -> None:
    """One kill: again and again is in `integration/test_elastic.py`, and in `make campaign` at full size."""
    seed = random.randrange(2**32)
    print(f"random moment of seed {seed}")  # shown when the test fails
    generator = random.Random(seed)
    process = runner.start(train__ranks=generator.choice([1, 2, 3]))
    assert runner.wait_for_step(process, generator.randrange(1, STEPS // 2)), runner.log.read_text()
    with_delay(generator.uniform(0, 0.1), process)
    kill_everything(process)
    runner.run()
    status = runner.status()
    assert_same_model(status, uninterrupted)
    assert [segment["outcome"] for segment in status["segments"]] == ["lost", "completed"]


def with_delay(seconds: float, process: "subprocess.Popen[bytes]") -> None:
    """Let the command go on for a moment."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def test_asked_to_stop_at_any_time_and_not_a_step_is_lost(runner: Runner, uninterrupted: dict[str, Any]) -> None:
    """By Ctrl-C before the ranks have begun, by SIGTERM in training, and when the flow alone is killed."""
    process = runner.start()
    scratch = f"/runs/{runner.settings['run']}/"
    assert wait_until(lambda: bool(processes_mentioning(scratch)), process), runner.log.read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 128 + signal.SIGINT, runner.log.read_text()
    for number, step in ((signal.SIGTERM, 20), (signal.SIGKILL, 45)):
        process = runner.start()
        assert runner.wait_for_step(process, step), runner.log.read_text()
        process.send_signal(number)
        assert process.wait(120) == (-number if number == signal.SIGKILL else 128 + number), runner.log.read_text()
        assert "Traceback" not in runner.log.read_text()
    runner.run()
    status = runner.status()
    assert [segment["outcome"] for segment in status["segments"][1:]] == ["preempted"] * 2 + ["completed"]
    assert status["steps_lost_total"] == 0
    causes = [segment["cause"] for segment in status["segments"][1:3]]
    assert causes[0] == "asked to stop by a signal"
    assert causes[1].startswith("the process that supervised the segment was killed")
    for segment, step in zip(status["segments"][1:3], (20, 45), strict=True):
        assert segment["last_step"] >= step
    assert_same_model(status, uninterrupted)


def test_one_rank_is_killed_and_the_flow_goes_on_by_itself_while_a_second_command_is_refused(
    runner: Runner, uninterrupted: dict[str, Any]
) -> None:
    process = runner.start(train__ranks=2)
    assert runner.wait_for_step(process, 40), runner.log.read_text()
    ranks = [pid for pid in processes_mentioning("training.worker") if is_rank(pid, runner)]
    assert len(ranks) == 2
    with stopped(ranks):  # so that the first command cannot be done before the second one looks
        second = runner.call("run")
        os.kill(ranks[1], signal.SIGKILL)
    assert second.returncode == 2
    assert f"is being trained by process {process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert process.wait(RUN_SECONDS) == 0, runner.log.read_text()
    status = runner.status()
    outcomes = [segment["outcome"] for segment in status["segments"]]
    assert outcomes[-1] == "completed" and outcomes[0] in ("failed", "lost")
    assert_same_model(status, uninterrupted)


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that stand still for the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def is_rank(pid: int, runner: Runner) -> bool:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"torch.distributed.run" not in line and str(runner.settings["run"]) in str(line)


def test_a_time_budget_cuts_the_run_and_damaged_checkpoints_are_set_aside(
    runner: Runner, uninterrupted: dict[str, Any]
) -> None:
    """Stopped when it has made enough segments and checkpoints: a slow machine would make many segments of a second."""
    manifest = manifest_of(runner)
    process = runner.start(segment__seconds=1)
    assert wait_until(lambda: has_cut_and_kept(manifest), process), runner.log.read_text()
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    status = runner.status()
    outcomes = [segment["outcome"] for segment in status["segments"]]
    # Asked to stop while torchrun was loaded, the last one had nobody who could have written how it ended.
    assert outcomes[0] == "budget" and set(outcomes) <= {"budget", "preempted", "lost"}
    assert status["steps_lost_total"] == 0
    state = manifest.load_head().state
    for record, name in zip(state.kept, ("model.safetensors", "index.json"), strict=False):
        flip_a_byte(Path(runner.settings["store"]) / record.path / name)
    verification = runner.call("verify")
    assert verification.returncode == 1
    assert verification.stdout.count("DAMAGED") == 2
    runner.run()
    status = runner.status()
    assert {record["step"] for record in status["set_aside"]} >= {record.step for record in state.kept[:2]}
    assert_same_model(status, uninterrupted)
    assert runner.call("verify").returncode == 0
    assert isinstance(status["kept"][0]["metric"], float)  # the last step is always validated


def has_cut_and_kept(manifest: Manifest) -> bool:
    """Whether a segment has ended, and enough checkpoints are kept for two to be damaged."""
    head = manifest.find_head()
    return head is not None and bool(head.state.segments) and len(head.state.kept) >= 3


def manifest_of(runner: Runner) -> Manifest:
    return Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"]))


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_completed_run_is_left_as_it_is(uninterrupted: dict[str, Any], runner: Runner) -> None:
    done = make_runner(runner.settings, dict(runner.environment), "uninterrupted")
    done.run()
    status = done.status()
    assert status["segments"] == uninterrupted["segments"]
    assert status["generation"] == uninterrupted["generation"]


def test_nothing_is_left_running(uninterrupted: dict[str, Any], store: Path) -> None:
    assert processes_mentioning(str(store)) == []
    scratch = store / ".tmp" / "scratch" / "runs" / "uninterrupted"
    assert list(scratch.glob("*")) == []
