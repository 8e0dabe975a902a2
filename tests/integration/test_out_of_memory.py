"""A device with too little memory for a microbatch: what is said, and a run that goes on with what needs less.

The lack is injected, once: there is no GPU here whose memory could be filled. What is counted is in
`unit/training/test_memory.py`.
"""

from pathlib import Path

import pytest

from tests.helpers.commands import Runner
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

pytestmark = pytest.mark.slow

ROWS = 120
LACK = FaultPlan().out_of_memory(rank=0, step=3)


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(ROWS))
    configuration = write_tiny_configuration(tmp_path, "lacking", tmp_path / "store", tmp_path / "data")
    settings = {"run": "lacking", "store": tmp_path / "store", "retry__delay_seconds": 0.1}
    return Runner(configuration, settings, prefect_server)


def test_a_run_that_adapts_goes_on_with_recomputed_blocks_and_ends_with_the_same_model(
    runner: Runner, tmp_path: Path
) -> None:
    adapt = {"segment__out_of_memory": "adapt"}
    with LACK.injected(runner, tmp_path / "plan"):
        result = runner.call("run", **adapt)
    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 0, said
    assert len(read_fired(tmp_path / "plan")) == 1
    adapted = runner.status()
    failed, following = adapted["segments"]
    assert (failed["outcome"], following["outcome"]) == ("failed", "completed")
    assert "out of memory on cpu in a microbatch of " in failed["cause"]
    assert "with train.activation_checkpointing = true about " in failed["cause"]
    assert "Configuration changed: train.activation_checkpointing: was False, is True now." in said

    runner.run(**adapt)  # the file still says otherwise: it stays as it is in the manifest
    assert runner.status()["segments"] == adapted["segments"]
    runner.settings["run"] = "undisturbed"
    runner.run()
    assert runner.status()["promoted"]["weights_sha256"] == adapted["promoted"]["weights_sha256"]
