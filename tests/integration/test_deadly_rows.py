"""Rows that end each rank which computes them: what the run does, and what a person is told."""

from pathlib import Path

import pytest

from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, StepFault, read_fired
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

pytestmark = pytest.mark.slow

ROWS, DEADLY_ROW = 120, 5
BREAKING = FaultPlan().having(StepFault("crash", row=DEADLY_ROW, times=None, point="computing"))
ATTEMPTS = 1


def test_the_run_is_tried_again_as_often_as_configured_and_fails_with_the_rows(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(ROWS))
    configuration = write_tiny_configuration(tmp_path, "breaking", tmp_path / "store", tmp_path / "data")
    settings = {"retry__attempts": ATTEMPTS, "retry__delay_seconds": 0.1, "train__ranks": 3, "train__steps": 40}
    runner = Runner(configuration, {"run": "breaking", "store": tmp_path / "store", **settings}, prefect_server)
    with BREAKING.injected(runner, tmp_path / "plan"):
        result = runner.call("run")
    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode != 0, said
    died = read_fired(tmp_path / "plan")
    ((step, index),) = {(mark["step"], mark["microbatch"]) for mark in died}
    status = runner.status()
    # One that left a newer checkpoint than it began with is no attempt.
    without_progress = [one for one in status["segments"] if one["first_step"] == status["step"]]
    assert len(without_progress) == 1 + ATTEMPTS, said
    assert len(died) == 2 * len(status["segments"])
    for segment in status["segments"]:
        assert (segment["outcome"], segment["last_step"]) == ("failed", step), segment["cause"]
        assert segment["cause"].startswith(f"Microbatch {index} of the step after step {step} ended each rank that")
        assert not segment["is_final"]
    assert f"ended as failed: Microbatch {index} of the step after step {step} ended each rank that computed it" in said
    assert str(DEADLY_ROW) in said.partition("It has the rows ")[2].partition(" of the training split")[0].split(", ")
