"""A run that meets poisoned samples goes back, leaves them out and completes; the same, however it was disturbed.

Which model that is depends on the samples alone: not on the cadence of checkpoints, nor on kills, nor on ranks.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.commands.audit import render_audit
from flows.commands.status import render_status
from storage.objects.addresses import find_run_address
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.audits.verdict import audit_run
from tasks.config.load import load_configuration
from tasks.corpora.generate import generate_corpus
from tasks.data.pipeline import prepare_dataset
from tests.helpers.commands import ROOT, RUN_SECONDS, Runner
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired
from tests.helpers.terminals import shown
from training.data.order import SampleOrder

CONFIGURATION = ROOT / "deployments/configs/demo.toml"
BATCH_SIZE, STEPS = 16, 60
# Steps are counted from 1 where a divergence is named: the sample at this place of the order goes into step 31.
POISONED_POSITION, DIVERGED_STEP, ROLLBACK_STEPS = 30 * BATCH_SIZE + 3, 31, 12
RESUME_STEP = DIVERGED_STEP - ROLLBACK_STEPS
SETTINGS = {
    "train__steps": STEPS,
    "train__batch_size": BATCH_SIZE,
    "train__ranks": 1,
    "train__log_every_steps": 5,
    "model__width": 32,
    "model__layers": 1,
    "data__vocabulary_size": 600,
    "data__max_tokens": 64,
    "checkpoint__every_steps": 5,
    "validation__every_steps": 45,
    "divergence__rollback_steps": ROLLBACK_STEPS,
    "retry__delay_seconds": 0.1,
}

MakeRunner = Callable[..., Runner]


@pytest.fixture(scope="module")
def make_runner(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> MakeRunner:
    folder = tmp_path_factory.mktemp("divergence")
    generate_corpus(folder / "policy", "policy", 2500)
    shared = {"data__source": folder / "policy", "store": folder / "store", **SETTINGS}

    def make(run: str, **settings: Any) -> Runner:
        return Runner(CONFIGURATION, {**shared, "run": run, **settings}, prefect_server)

    return make


@pytest.fixture(scope="module")
def row_at(make_runner: MakeRunner, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    """Row of the training split at a place of the run's order."""
    settings = make_runner("unused").settings
    assignments = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    config = load_configuration(CONFIGURATION, assignments)
    store = LocalStore(Path(settings["store"]))
    dataset = prepare_dataset(config.data, store, tmp_path_factory.mktemp("scratch"))
    num_rows = dataset.splits["train"].num_rows
    assert num_rows > 100 * BATCH_SIZE  # within one epoch, so that nothing that was left out comes again
    order = SampleOrder(num_rows, dataset.row_group_rows, config.train.seed)
    return lambda position: int(order.rows(position, 1)[0])


@pytest.fixture(scope="module")
def poison(row_at: Callable[[int], int]) -> FaultPlan:
    return FaultPlan().nan(row_at(POISONED_POSITION))


@pytest.fixture(scope="module")
def undisturbed(
    make_runner: MakeRunner, poison: FaultPlan, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str]:
    """The run that met the poisoned sample and nothing else; its status, and what the command printed."""
    runner, folder = make_runner("undisturbed"), tmp_path_factory.mktemp("plan")
    with poison.injected(runner, folder):
        result = runner.call("run")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [mark["step"] for mark in read_fired(folder)] == [DIVERGED_STEP - 1]
    return runner.status(), result.stdout + result.stderr


def audited(status: dict[str, Any]) -> dict[str, Any]:
    """The audit of a run, which must pass."""
    address = find_run_address(status["address"])
    assert address is not None
    result = audit_run(*address)
    assert result["ok"], result["violations"]
    assert result["steps"] == STEPS
    return result


def head_of(runner: Runner) -> RunState:
    return Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"])).load_head().state


def report_of(runner: Runner) -> str:
    return (Path(runner.settings["store"]) / "runs" / str(runner.settings["run"]) / "report.html").read_text()


def test_it_goes_back_leaves_out_what_led_there_and_completes(undisturbed: tuple[dict[str, Any], str]) -> None:
    status, printed = undisturbed
    assert status["state"] == "completed"
    assert [segment["outcome"] for segment in status["segments"]] == ["diverged", "completed"]
    (record,) = status["rollbacks"]
    assert (record["diverged_step"], record["resume_step"]) == (DIVERGED_STEP, RESUME_STEP)
    (skipped,) = audited(status)["skipped"]
    assert (skipped["first_position"], skipped["end_position"]) == (
        RESUME_STEP * BATCH_SIZE,
        DIVERGED_STEP * BATCH_SIZE,
    )
    words = " ".join(printed.split())
    assert f"The loss became nan at step {DIVERGED_STEP}. Rollback 1 of at most 5: back to step {RESUME_STEP}" in words
    assert "rolled back 1 time, 192 samples left out" in words
    assert "Traceback" not in printed


def test_status_audit_and_report_tell_it_to_a_person(
    undisturbed: tuple[dict[str, Any], str], make_runner: MakeRunner
) -> None:
    status, _ = undisturbed
    told = f"back to step {RESUME_STEP}, and on from there without the 192 samples that led to step {DIVERGED_STEP}"
    assert told in " ".join(shown(render_status(status)).split())
    assert "except the 192 that rollbacks left out" in " ".join(shown(render_audit(audited(status))).split())
    page = report_of(make_runner("undisturbed"))
    assert "was rolled back 1 time; 192 samples of the order were left out" in page


@pytest.mark.slow
def test_given_up_then_killed_before_it_could_answer_and_on_other_ranks_it_comes_to_the_same_model(
    undisturbed: tuple[dict[str, Any], str], make_runner: MakeRunner, poison: FaultPlan, tmp_path: Path
) -> None:
    """With checkpoints at other steps, too. When no rollback is left, the story is told; one more is enough."""
    runner = make_runner("killed", checkpoint__every_steps=9)
    plan = poison.kill(Moment(role="command", operation="link", place="rolled back"), death="machine")
    with plan.injected(runner, tmp_path):
        for _ in range(2):  # the second time without training again
            require_the_story(runner.call("run", divergence__max_rollbacks=0))
        assert runner.status()["state"] == "diverged"
        assert f"The loss became nan at step {DIVERGED_STEP}" in report_of(runner)
        assert len(read_fired(tmp_path)) == 1
        process = runner.start(divergence__max_rollbacks=1)
        assert process.wait(RUN_SECONDS) == -signal.SIGKILL, runner.log.read_text()
        state = head_of(runner)
        assert state.unanswered_divergence is not None and state.rollbacks == []
        runner.run(train__ranks=2, divergence__max_rollbacks=1)
    assert len(read_fired(tmp_path)) == 2
    status = runner.status()
    assert [segment["outcome"] for segment in status["segments"]] == ["diverged", "completed"]
    assert_same(status, undisturbed[0])


def require_the_story(result: "subprocess.CompletedProcess[str]") -> None:
    assert result.returncode == 2
    told = " ".join(result.stderr.split())
    assert re.search(rf"Error: Run 'killed' diverged in segment \d+: The loss became nan at step {DIVERGED_STEP}", told)
    assert "No rollback is allowed: divergence.max_rollbacks = 0." in told
    assert "--set divergence.max_rollbacks=1" in told
    assert "Traceback" not in result.stderr


def assert_same(status: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same model, and the same samples left out on the way to it."""
    assert status["state"] == "completed"
    assert status["promoted"]["weights_sha256"] == expected["promoted"]["weights_sha256"]
    assert status["metrics"] == expected["metrics"]
    names = ("diverged_step", "resume_step", "first_position", "end_position", "cause")
    told = [json.dumps([[record[name] for name in names] for record in s["rollbacks"]]) for s in (status, expected)]
    assert told[0] == told[1]
    audited(status)


@pytest.mark.slow
def test_a_loss_that_leaps_and_stays_up_is_answered_with_a_lower_learning_rate(
    make_runner: MakeRunner, row_at: Callable[[int], int], tmp_path: Path
) -> None:
    """Three batches in a row have samples that cost a fortune; one of them before, alone, is borne."""
    plan = FaultPlan()
    for step in (26, 30, 31, 32):
        for place in range(4):  # of which not all happen to be what such a value makes the model say
            plan = plan.spike(row_at(step * BATCH_SIZE + place))
    spikes = {"divergence__window_steps": 20, "divergence__consecutive_steps": 3}
    runner = make_runner("spike", divergence__learning_rate_factor=0.5, **spikes)
    with plan.injected(runner, tmp_path):
        runner.run()
    status = runner.status()
    assert [mark["step"] for mark in read_fired(tmp_path)][::4] == [26, 30, 31, 32]
    (record,) = status["rollbacks"]
    assert record["diverged_step"] == 33
    assert record["learning_rate_factor"] == 0.5
    assert "The loss rose suddenly at step 31 and stayed high up to step 33" in record["cause"]
    divergence = status["segments"][0]["divergence"]
    assert divergence["kind"] == "spike"
    assert divergence["value"] > divergence["threshold"] > divergence["median"]
    assert audited(status)["skipped"][0]["end_position"] == 33 * BATCH_SIZE
