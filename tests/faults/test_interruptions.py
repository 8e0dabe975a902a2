"""A run that is interrupted in every way and continued by the same command ends as one that nothing interrupted.

One run serves all: the fixture `interrupted` is what happens to it, the tests are what was promised of each of it. Each
way alone, again and again, is in `make campaign`.
"""

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from storage.objects.addresses import find_run_address
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.audits.verdict import audit_run
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import (
    ROOT,
    RUN_SECONDS,
    Runner,
    StartedCommand,
    call_here,
    kill_everything,
    processes_mentioning,
    wait_until,
)
from training.agents.rank import TITLE

# The first test waits for both runs and all that happens to them: nine commands, where others start one to three.
pytestmark = pytest.mark.timeout(2700)

# Long enough that a fault aimed at the first half of a run never finds it over, also on a quicker machine.
STEPS = 150
FLOW_KILLED_STEP, ASKED_TO_STOP_STEP = 20, 45
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
    "retry__reread_seconds": 0.1,
}


@dataclass
class Interrupted:
    """A run, and what its commands answered while it was interrupted."""

    runner: Runner
    generator: random.Random
    exit_codes: dict[str, int] = field(default_factory=dict)
    said_when_asked_to_stop: str = ""
    damaged_steps: list[int] = field(default_factory=list)
    verified: "subprocess.CompletedProcess[str] | None" = None
    holder: int = 0
    refused: "subprocess.CompletedProcess[str] | None" = None
    status: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "store"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, Any]:
    corpus = tmp_path_factory.mktemp("corpus") / "policy"
    generate_corpus(corpus, "policy", 2500)
    settings = {"data__source": corpus, "store": store, **SETTINGS}
    make_runner(settings, {}, "prepared").prepare()
    return settings


@pytest.fixture(scope="module")
def uninterrupted(settings: dict[str, Any], prefect_server: dict[str, str]) -> dict[str, Any]:
    runner = make_runner(settings, prefect_server, "uninterrupted")
    runner.run()
    return runner.status()


@pytest.fixture(scope="module")
def interrupted(settings: dict[str, Any], prefect_server: dict[str, str]) -> Iterator[Interrupted]:
    seed = random.randrange(2**32)
    print(f"random moment of seed {seed}")  # shown when a test fails
    run = Interrupted(make_runner(settings, prefect_server, "interrupted"), random.Random(seed))
    try:
        interrupt_as_the_ranks_begin(run)
        kill_the_flow_alone(run)
        ask_to_stop_in_training(run)
        damage_the_newest_checkpoints(run)
        kill_everything_at_a_random_moment(run)
        kill_one_rank_while_a_second_command_asks(run)
        run.status = run.runner.status()
        yield run
    finally:
        for pid in processes_mentioning(str(run.runner.settings["store"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def make_runner(settings: dict[str, Any], environment: dict[str, str], run: str) -> Runner:
    return Runner(ROOT / "deployments/configs/demo.toml", {**settings, "run": run}, environment)


def interrupt_as_the_ranks_begin(run: Interrupted) -> None:
    """Before they train, mostly: on a machine that does other things too they may be some steps further."""
    process = run.runner.start()
    scratch = Path(run.runner.settings["store"]) / ".tmp/scratch/runs/interrupted"

    def has_begun() -> bool:  # to look through all processes takes long
        return any(scratch.glob("*")) and bool(processes_mentioning("/runs/interrupted/"))

    assert wait_until(has_begun, process), run.runner.log.read_text()
    process.send_signal(signal.SIGINT)
    run.exit_codes["Ctrl-C"] = process.wait(120)


def kill_the_flow_alone(run: Interrupted) -> None:
    process = start_up_to(run, FLOW_KILLED_STEP, train__ranks=2)
    process.kill()
    run.exit_codes["flow killed"] = process.wait(120)


def ask_to_stop_in_training(run: Interrupted) -> None:
    process = start_up_to(run, ASKED_TO_STOP_STEP)
    process.terminate()
    run.exit_codes["SIGTERM"] = process.wait(120)
    run.said_when_asked_to_stop = run.runner.log.read_text()


def damage_the_newest_checkpoints(run: Interrupted) -> None:
    kept = state_of(run).kept
    assert len(kept) >= 3  # so that one is left to go on from
    for record, name in zip(kept, ("model.safetensors", "index.json"), strict=False):
        flip_a_byte(Path(run.runner.settings["store"]) / record.path / name)
        run.damaged_steps.append(record.step)
    run.verified = verify(run)


def verify(run: Interrupted) -> "subprocess.CompletedProcess[str]":
    return call_here(["verify", f"{run.runner.settings['store']}/runs/interrupted"])


def state_of(run: Interrupted) -> RunState:
    return Manifest(LocalStore(Path(run.runner.settings["store"])), "interrupted").load_head().state


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def kill_everything_at_a_random_moment(run: Interrupted) -> None:
    """On any number of ranks, when the damaged checkpoints are quarantined, in the first half of the run."""
    process = run.runner.start(train__ranks=run.generator.choice([1, 2, 3]))
    assert wait_until(lambda: len(state_of(run).quarantined) == 2, process), run.runner.log.read_text()
    step = run.generator.randrange(max(run.damaged_steps), STEPS // 2)
    assert run.runner.wait_for_step(process, step), run.runner.log.read_text()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(run.generator.uniform(0, 0.1))  # the command goes on for a moment
    kill_everything(process)


def kill_one_rank_while_a_second_command_asks(run: Interrupted) -> None:
    process = start_up_to(run, 1, train__ranks=2)
    ranks = [pid for pid in processes_mentioning(TITLE) if is_rank(pid)]
    assert len(ranks) == 2
    with stopped(ranks):  # so that the first command cannot be done before the second one looks
        run.holder, run.refused = process.pid, run.runner.call("run")
        os.kill(ranks[1], signal.SIGKILL)
    run.exit_codes["rank killed"] = process.wait(RUN_SECONDS)


def start_up_to(run: Interrupted, step: int, **settings: Any) -> StartedCommand:
    """The command, when its ranks have reported this step."""
    process = run.runner.start(**settings)
    assert run.runner.wait_for_step(process, step), run.runner.log.read_text()
    return process


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


def is_rank(pid: int) -> bool:
    return "/runs/interrupted/" in Path(f"/proc/{pid}/cmdline").read_text()


def test_interrupted_in_every_way_it_ends_with_the_same_model(
    interrupted: Interrupted, uninterrupted: dict[str, Any]
) -> None:
    status = interrupted.status
    assert status["state"] == "completed"
    assert status["promoted"]["weights_sha256"] == uninterrupted["promoted"]["weights_sha256"]
    assert status["metrics"] == uninterrupted["metrics"]
    assert status["dataset_digest"] == uninterrupted["dataset_digest"]
    assert isinstance(status["kept"][0]["metric"], float)  # the last step is always validated
    address = find_run_address(status["address"])
    assert address is not None
    audit = audit_run(*address)
    assert audit["ok"] and audit["steps"] == STEPS, audit["violations"]
    assert sum(end - first for segment in audit["segments"] for first, end in [segment["counted"] or (0, 0)]) == STEPS


def test_asked_to_stop_at_any_time_not_a_step_is_lost(interrupted: Interrupted) -> None:
    """By Ctrl-C as the ranks begin, and by SIGTERM in training."""
    assert interrupted.exit_codes["Ctrl-C"] == 128 + signal.SIGINT
    assert interrupted.exit_codes["SIGTERM"] == 128 + signal.SIGTERM
    assert "Traceback" not in interrupted.said_when_asked_to_stop
    begun, following, asked = interrupted.status["segments"][:3]
    assert begun["last_step"] < FLOW_KILLED_STEP and begun["steps_lost"] == 0
    assert following["first_step"] == begun["last_step"]
    assert (asked["outcome"], asked["cause"]) == ("preempted", "asked to stop by a signal")
    assert asked["last_step"] >= ASKED_TO_STOP_STEP and asked["steps_lost"] == 0


def test_ranks_whose_flow_alone_is_killed_save_by_themselves_and_not_a_step_is_lost(interrupted: Interrupted) -> None:
    assert interrupted.exit_codes["flow killed"] == -signal.SIGKILL
    _, left, following = interrupted.status["segments"][:3]
    assert left["outcome"] == "preempted"
    assert left["cause"].startswith("the process that supervised the segment was killed")
    assert left["last_step"] >= FLOW_KILLED_STEP and left["steps_lost"] == 0
    assert following["first_step"] == left["last_step"]


def test_damaged_checkpoints_are_named_and_quarantined(interrupted: Interrupted) -> None:
    assert interrupted.verified is not None
    assert interrupted.verified.returncode == 1
    assert interrupted.verified.stdout.count("DAMAGED") == 2
    assert {record["step"] for record in interrupted.status["quarantined"]} == set(interrupted.damaged_steps)
    unread, following = interrupted.status["segments"][3:5]
    assert (unread["outcome"], unread["first_step"]) == ("failed", max(interrupted.damaged_steps))
    assert "could not be read" in unread["cause"]
    assert following["first_step"] < min(interrupted.damaged_steps)
    assert verify(interrupted).returncode == 0


def test_killed_at_a_random_moment_it_is_lost_and_the_next_command_goes_on(interrupted: Interrupted) -> None:
    killed, following = interrupted.status["segments"][4:6]
    assert killed["outcome"] == "lost"
    assert following["first_step"] == killed["last_step"] - killed["steps_lost"]


def test_one_rank_is_killed_and_the_other_trains_on_while_a_second_command_is_refused(
    interrupted: Interrupted,
) -> None:
    assert interrupted.refused is not None
    assert interrupted.refused.returncode == 2
    assert f"is being trained by process {interrupted.holder}" in interrupted.refused.stderr
    assert "Traceback" not in interrupted.refused.stderr
    assert interrupted.exit_codes["rank killed"] == 0, interrupted.runner.log.read_text()
    (last,) = interrupted.status["segments"][5:]
    assert last["outcome"] == "completed"
    assert [cause for view in last["views"] for cause in view["causes"]] == ["SIGKILL"]


def test_a_completed_run_is_left_as_it_is(
    uninterrupted: dict[str, Any], settings: dict[str, Any], prefect_server: dict[str, str]
) -> None:
    done = make_runner(settings, prefect_server, "uninterrupted")
    done.run()
    status = done.status()
    assert status["segments"] == uninterrupted["segments"]
    assert status["generation"] == uninterrupted["generation"]


def test_nothing_is_left_running(uninterrupted: dict[str, Any], interrupted: Interrupted, store: Path) -> None:
    assert processes_mentioning(str(store)) == []
    scratch = store / ".tmp" / "scratch" / "runs" / "uninterrupted"
    assert list(scratch.glob("*")) == []
