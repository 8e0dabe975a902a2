"""A run that goes on with something else than it was begun with: another gate, more steps.

One run serves all. What a gate refuses or lets pass is in `unit/tasks/test_gate.py`, what counts as a change in
`unit/tasks/test_changes.py`.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

PROMISE = "The model is the one that an uninterrupted run makes"
# No metric comes near it.
TOO_MUCH = {"checkpoint__gate__lowest_metric": 2}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Runner:
    folder = tmp_path_factory.mktemp("changed")
    write_parquet(folder / "data" / "part-0.parquet", text_columns(120))
    store = folder / "store"
    configuration = write_tiny_configuration(folder, "changed", store, folder / "data")
    return Runner(configuration, {"run": "changed", "store": store}, prefect_server)


@pytest.fixture(scope="module")
def refused(runner: Runner) -> dict[str, Any]:
    """The run with a gate that its last checkpoint does not pass."""
    result = runner.call("run", **TOO_MUCH)
    said = " ".join(result.stderr.split())
    assert result.returncode == 2, said
    assert "Error: Run 'changed' reached its last step, 4, but its model did not pass the quality gate" in said
    assert "is below checkpoint.gate.lowest_metric = 2" in said and "change checkpoint.gate" in said
    assert "and is not promoted" in said
    page = report_of(runner)
    assert "did not pass the quality gate: " in page and "change checkpoint.gate" in page
    return runner.status()


@pytest.fixture(scope="module")
def accepted(runner: Runner, refused: dict[str, Any]) -> dict[str, Any]:
    """The same run without that gate: complete."""
    assert refused["state"] == "refused"
    runner.run()
    return runner.status()


def report_of(runner: Runner) -> str:
    return (Path(runner.settings["store"]) / "runs" / "changed" / "report.html").read_text()


def test_a_model_that_does_not_pass_ends_the_run(refused: dict[str, Any]) -> None:
    assert (refused["state"], len(refused["segments"])) == ("refused", 1)
    assert refused["step"] < 4


def test_with_another_gate_it_is_taken_as_it_is(refused: dict[str, Any], accepted: dict[str, Any]) -> None:
    assert (accepted["state"], len(accepted["segments"]), accepted["steps_lost_total"]) == ("completed", 1, 0)
    assert accepted["promoted"]["weights_sha256"] == refused["refused"][0]["checkpoint"]["weights_sha256"]
    assert accepted["refused"] == []


def test_a_complete_run_that_is_extended_promises_no_more_than_it_can(runner: Runner, accepted: dict[str, Any]) -> None:
    assert accepted["changes"] == []
    result = runner.call("run", train__steps=6)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed  1 time while under way" in result.stdout
    (change,) = runner.status()["changes"]
    assert (change["step"], change["what"], change["before"], change["now"]) == (4, "train.steps", "4", "6")
    page = report_of(runner)
    assert PROMISE not in page and "train.steps was 4 up to step 4 and 6 from there on" in page
