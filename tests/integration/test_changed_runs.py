"""A run that goes on with something else than it was begun with: another gate, more steps.

One run serves all, and its validations give NaN: it is saved, told, and not promoted as best. What a gate rejects or
lets pass is in `unit/tasks/promotion/test_gate.py`, what counts as a change in `unit/tasks/reporting/test_changes.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.status import render_status
from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.terminals import shown
from tests.helpers.tiny_runs import write_tiny_configuration

PROMISE = "The model is the one that an uninterrupted run makes"
# No metric comes near it.
TOO_MUCH = {"checkpoint__gate__lowest_metric": 2}
ROWS = 120
# By time: the last fifth are validation and test. fp16 has no number above 65,504.
SETTINGS = {
    "data__numeric": '["amount"]', "data__split__by": "time", "data__split__column": "day", "train__precision": "fp16",
    "validation__every_steps": 2,
}  # fmt: skip
NAN = {"loss": "nan", "accuracy": "nan", "macro_f1": "nan"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Runner:
    folder = tmp_path_factory.mktemp("changed")
    amounts = [float(i % 7) if i < 0.8 * ROWS else 1e9 for i in range(ROWS)]
    columns = text_columns(ROWS) | {"day": list(range(ROWS)), "amount": amounts}
    write_parquet(folder / "data" / "part-0.parquet", columns)
    store = folder / "store"
    configuration = write_tiny_configuration(folder, "changed", store, folder / "data")
    runner = Runner(configuration, {"run": "changed", "store": store, **SETTINGS}, prefect_server)
    runner.prepare()
    return runner


@pytest.fixture(scope="module")
def rejected(runner: Runner) -> dict[str, Any]:
    """The run with a gate that its last checkpoint does not pass."""
    result = runner.call("run", **TOO_MUCH)
    said = " ".join(result.stderr.split())
    assert result.returncode == 2, said
    assert "Error: Training of run 'changed' ended at step 4, but its model did not pass the quality gate" in said
    assert "macro-F1 nan at step 4 is not a finite number" in said and "change checkpoint.gate" in said
    assert "and is not promoted" in said
    assert "The validation at step 2 gave values that are not finite numbers: loss = nan" in said
    page = report_of(runner)
    assert "did not pass the quality gate: " in page and "change checkpoint.gate" in page
    return runner.status()


@pytest.fixture(scope="module")
def accepted(runner: Runner, rejected: dict[str, Any]) -> dict[str, Any]:
    """The same run without that gate: complete."""
    assert rejected["state"] == "rejected"
    runner.run()
    return runner.status()


def report_of(runner: Runner) -> str:
    return (Path(runner.settings["store"]) / "runs" / "changed" / "report.html").read_text()


def test_a_model_that_does_not_pass_ends_the_run(rejected: dict[str, Any]) -> None:
    assert (rejected["state"], len(rejected["segments"])) == ("rejected", 1)
    assert rejected["step"] < 4


def test_with_another_gate_it_is_taken_as_it_is(rejected: dict[str, Any], accepted: dict[str, Any]) -> None:
    assert (accepted["state"], len(accepted["segments"]), accepted["steps_lost_total"]) == ("completed", 1, 0)
    assert accepted["promoted"]["weights_sha256"] == rejected["rejected"][0]["checkpoint"]["weights_sha256"]
    assert accepted["rejected"] == []


def test_validations_that_give_nan_are_saved_told_and_promoted_without_a_gate(
    runner: Runner, accepted: dict[str, Any]
) -> None:
    assert accepted["metrics"] == NAN and accepted["promoted"]["metric"] == "nan"
    assert accepted["promoted"]["not_finite"] == {"step": 4, "metrics": NAN}
    told = " ".join(shown(render_status(accepted)).split())
    assert "the last validation, at step 4, was not finite: accuracy = nan, loss = nan" in told
    assert "The last validation, at step 4, gave values that are not finite numbers" in report_of(runner)
    state = json.loads((Path(accepted["promoted"]["path"]) / "state.json").read_text())
    assert state["best"] == {"metric": "macro_f1", "value": None, "step": None}


@pytest.mark.slow
def test_a_complete_run_that_is_extended_promises_no_more_than_it_can(runner: Runner, accepted: dict[str, Any]) -> None:
    assert accepted["changes"] == []
    result = runner.call("run", train__steps=6)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed  1 time while under way" in result.stdout
    (change,) = runner.status()["changes"]
    assert (change["step"], change["what"], change["before"], change["now"]) == (4, "train.steps", "4", "6")
    page = report_of(runner)
    assert PROMISE not in page and "train.steps was 4 up to step 4 and 6 from there on" in page
