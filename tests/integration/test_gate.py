"""The quality gate from outside: a last checkpoint that does not pass ends the run, until the gate is another one."""

from pathlib import Path

import pytest

from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

# No metric comes near it.
TOO_MUCH = {"checkpoint__gate__lowest_metric": 2}


@pytest.fixture
def gated(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "gated", tmp_path / "store", tmp_path / "data")
    return Runner(configuration, {"store": tmp_path / "store"}, prefect_server)


def test_a_model_that_does_not_pass_ends_the_run_and_with_another_gate_is_taken_as_it_is(
    gated: Runner, tmp_path: Path
) -> None:
    for attempt in ("trained", "only looked at again"):
        result = gated.call("run", **TOO_MUCH)
        said = " ".join(result.stderr.split())
        assert result.returncode == 2, said
        assert "Error: Run 'gated' reached its last step, 4, but its model did not pass the quality gate" in said
        assert "is below checkpoint.gate.lowest_metric = 2" in said and "change checkpoint.gate" in said
        assert ("and is not promoted" in said) == (attempt == "trained")
        status = gated.status()
        assert (status["state"], len(status["segments"])) == ("refused", 1)
        assert status["step"] < 4
    page = (tmp_path / "store/runs/gated/report.html").read_text()
    assert "did not pass the quality gate: " in page and "change checkpoint.gate" in page
    refused = status["refused"][0]["checkpoint"]
    gated.run()
    status = gated.status()
    assert (status["state"], len(status["segments"]), status["steps_lost_total"]) == ("completed", 1, 0)
    assert status["promoted"]["weights_sha256"] == refused["weights_sha256"]
    assert status["refused"] == []
