"""Real training that a person has go back: killed on the way and continued, it ends as the same run undisturbed.

The request is the flow of the deployment `resume`, in a process of its own; the going on after a kill too.
"""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from storage.objects.local_store import LocalStore
from tasks.audits.verdict import audit_run
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired
from tests.helpers.operators import CONFIGURATION
from tests.helpers.resuming import resume_by_flow

pytestmark = pytest.mark.slow

STEPS, BACK_TO_STEP, BATCH_SIZE = 40, 20, 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Runner:
    """A run that is complete, with checkpoints on the way."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(CONFIGURATION)
    generate_corpus(folder / "corpus", "policy", 600)
    settings = {
        "run": "tiny", "store": folder / "store", "train__steps": STEPS, "checkpoint__every_steps": 10,
        "checkpoint__keep": 5, "train__log_every_steps": 5, "validation__every_steps": 30,
    }  # fmt: skip
    runner = Runner(folder / "tiny.toml", settings, prefect_server)
    runner.run()
    return runner


def copy_of(trained: Runner, folder: Path) -> Runner:
    """The same run in a store of its own, before it goes back."""
    store = Path(shutil.copytree(Path(trained.settings["store"]), folder / "store"))
    return Runner(trained.configuration, {**trained.settings, "store": store}, trained.environment)


@pytest.fixture(scope="module")
def undisturbed(trained: Runner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The status of the run that went back and was not killed."""
    runner = copy_of(trained, tmp_path_factory.mktemp("undisturbed"))
    result = resume_by_flow(runner, back_to_step=BACK_TO_STEP)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"tiny: completed, step {STEPS} of {STEPS}" in result.stdout
    return runner.status()


def test_it_goes_on_from_the_kept_checkpoint_with_other_samples_to_another_model(
    trained: Runner, undisturbed: dict[str, Any]
) -> None:
    first, second = undisturbed["segments"]
    assert (first["last_step"], second["first_step"], second["last_step"]) == (STEPS, BACK_TO_STEP, STEPS)
    assert undisturbed["promoted"]["weights_sha256"] != trained.status()["promoted"]["weights_sha256"]
    assert undisturbed["steps_lost_total"] == 0
    (record,) = undisturbed["rollbacks"]
    assert (record["resume_step"], record["first_position"], record["end_position"]) == (
        BACK_TO_STEP, BACK_TO_STEP * BATCH_SIZE, STEPS * BATCH_SIZE,
    )  # fmt: skip
    assert record["description"].startswith("1. A person asked for it, by the flow run ")


def test_the_audit_is_intact_and_names_what_was_left_out_and_the_report_says_who_asked(
    undisturbed: dict[str, Any],
) -> None:
    store, _, run = undisturbed["address"].rpartition("/runs/")
    audit = audit_run(LocalStore(Path(store)), run)
    assert audit["ok"], audit["violations"]
    (skipped,) = audit["skipped"]
    assert (skipped["samples"], skipped["before_step"]) == ((STEPS - BACK_TO_STEP) * BATCH_SIZE, BACK_TO_STEP)
    assert skipped["cause"].startswith("A person asked for it")
    page = (Path(store) / "runs" / run / "report.html").read_text()
    assert "The run was rolled back by hand 1 time; 160 samples of the order were left out." in page
    assert "A person asked for it, by the flow run" in page
    assert "The model is the one that an uninterrupted run makes" not in page
    assert "Training diverged" not in page


@pytest.mark.parametrize(
    ("plan", "has_gone_back"),
    [
        (FaultPlan().kill(Moment(role="command", operation="link", place="rolled back"), death="machine"), False),
        (FaultPlan().kill_at_step(BACK_TO_STEP + 13, death="machine"), True),
    ],
    ids=["before the commit", "in training after it"],
)
def test_killed_and_continued_it_ends_with_the_weights_of_the_one_that_was_not_killed(
    trained: Runner, undisturbed: dict[str, Any], tmp_path: Path, plan: FaultPlan, has_gone_back: bool
) -> None:
    runner = copy_of(trained, tmp_path)
    with plan.injected(runner, tmp_path / "plan"):
        killed = resume_by_flow(runner, back_to_step=BACK_TO_STEP)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert len(read_fired(tmp_path / "plan")) == 1
    assert len(runner.status()["rollbacks"]) == has_gone_back
    again = {} if has_gone_back else {"back_to_step": BACK_TO_STEP}
    result = resume_by_flow(runner, **again)
    assert result.returncode == 0, result.stdout + result.stderr
    status = runner.status()
    assert status["state"] == "completed"
    assert status["promoted"]["weights_sha256"] == undisturbed["promoted"]["weights_sha256"]
    assert status["metrics"] == undisturbed["metrics"]
    assert audit_run(LocalStore(Path(runner.settings["store"])), "tiny")["ok"]
