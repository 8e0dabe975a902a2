"""The quality gate from outside: a last checkpoint that does not pass ends the run, until the gate is another one."""

from pathlib import Path

import pytest

from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet

CONFIGURATION = """
run = "gated"
store = "STORE"

[data]
source = "SOURCE"
text = "text"
label = "domain"
kind = "multiclass"
vocabulary_size = 300
max_tokens = 64
row_group_rows = 16
shard_rows = 64

[model]
width = 16
layers = 1
heads = 2
feedforward = 32

[train]
steps = 4
batch_size = 12

[checkpoint]
every_steps = 2
"""
# No metric comes near it.
TOO_MUCH = {"checkpoint__gate__lowest_metric": 2}


@pytest.fixture
def gated(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    text = CONFIGURATION.replace("STORE", str(tmp_path / "store")).replace("SOURCE", str(tmp_path / "data"))
    (tmp_path / "run.toml").write_text(text)
    return Runner(tmp_path / "run.toml", {"store": tmp_path / "store"}, prefect_server)


def test_a_model_that_does_not_pass_ends_the_run_and_with_another_gate_is_taken_as_it_is(gated: Runner) -> None:
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
    refused = status["refused"][0]["checkpoint"]
    gated.run()
    status = gated.status()
    assert (status["state"], len(status["segments"]), status["steps_lost_total"]) == ("completed", 1, 0)
    assert status["promoted"]["weights_sha256"] == refused["weights_sha256"]
    assert status["refused"] == []
