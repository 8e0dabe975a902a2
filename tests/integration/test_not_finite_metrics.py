"""A validation that gives NaN: training goes on, everything is saved, the person is told, and nothing is the best."""

import json
from pathlib import Path

import pytest

from flows.commands.status import render_status
from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.terminals import shown
from tests.helpers.tiny_runs import write_tiny_configuration

ROWS = 120
# By time: the last fifth are validation and test. fp16 has no number above 65,504.
SETTINGS = {
    "data__numeric": '["amount"]', "data__split__by": "time", "data__split__column": "day", "train__precision": "fp16",
    "validation__every_steps": 2,
}  # fmt: skip
NAN = {"loss": "nan", "accuracy": "nan", "macro_f1": "nan"}


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    amounts = [float(i % 7) if i < 0.8 * ROWS else 1e9 for i in range(ROWS)]
    columns = text_columns(ROWS) | {"day": list(range(ROWS)), "amount": amounts}
    write_parquet(tmp_path / "data" / "part-0.parquet", columns)
    configuration = write_tiny_configuration(tmp_path, "overflow", tmp_path / "store", tmp_path / "data")
    return Runner(configuration, {"run": "overflow", "store": tmp_path / "store", **SETTINGS}, prefect_server)


def test_a_run_whose_validations_give_nan_is_saved_told_and_promoted_without_a_gate(
    runner: Runner, tmp_path: Path
) -> None:
    """Gates: `unit/tasks/test_gate.py`."""
    result = runner.call("run")
    assert result.returncode == 0, result.stdout + result.stderr
    said = " ".join(result.stderr.split())
    assert "The validation at step 2 gave values that are not finite numbers: loss = nan" in said
    status = runner.status()
    assert (status["state"], status["step"], len(status["segments"])) == ("completed", 4, 1)
    assert status["metrics"] == NAN and status["promoted"]["metric"] == "nan"
    assert status["promoted"]["not_finite"] == {"step": 4, "metrics": NAN}
    told = " ".join(shown(render_status(status)).split())
    assert "the last validation, at step 4, was not finite: accuracy = nan, loss = nan" in told
    page = (tmp_path / "store/runs/overflow/report.html").read_text()
    assert "The last validation, at step 4, gave values that are not finite numbers" in page
    state = json.loads((Path(status["promoted"]["path"]) / "state.json").read_text())
    assert state["best"] == {"metric": "macro_f1", "value": None, "step": None}
