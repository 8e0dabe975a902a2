"""A validation that gives NaN: training goes on, everything is saved, the person is told, and nothing is the best."""

import json
from pathlib import Path

import pytest

from flows.commands.status import render_status
from storage.datasets import load_dataset
from storage.objects.local_store import LocalStore
from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.terminals import shown
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import checkpoint_at, make_spec, read_state, train_forked

ROWS = 120
# By time: the last fifth are validation and test. fp16 has no number above 65,504.
SETTINGS = {
    "data__numeric": '["amount"]', "data__split__by": "time", "data__split__column": "day", "train__precision": "fp16",
    "validation__every_steps": 2,
}  # fmt: skip
NAN = {"loss": "nan", "accuracy": "nan", "macro_f1": "nan"}
NOTHING_IS_BEST = {"metric": "macro_f1", "value": None, "step": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overflow")


@pytest.fixture(scope="module")
def runner(folder: Path, prefect_server: dict[str, str]) -> Runner:
    amounts = [float(i % 7) if i < 0.8 * ROWS else 1e9 for i in range(ROWS)]
    columns = text_columns(ROWS) | {"day": list(range(ROWS)), "amount": amounts}
    write_parquet(folder / "data" / "part-0.parquet", columns)
    configuration = write_tiny_configuration(folder, "overflow", folder / "store", folder / "data")
    return Runner(configuration, {"run": "overflow", "store": folder / "store", **SETTINGS}, prefect_server)


@pytest.fixture(scope="module")
def said(runner: Runner) -> str:
    """What the command told of a run that is complete."""
    result = runner.call("run")
    assert result.returncode == 0, result.stdout + result.stderr
    return " ".join(result.stderr.split())


def test_a_run_whose_validations_give_nan_is_saved_told_and_promoted_without_a_gate(
    runner: Runner, said: str, folder: Path
) -> None:
    """Gates: `unit/tasks/test_gate.py`."""
    assert "The validation at step 2 gave values that are not finite numbers: loss = nan" in said
    status = runner.status()
    assert (status["state"], status["step"], len(status["segments"])) == ("completed", 4, 1)
    assert status["metrics"] == NAN and status["promoted"]["metric"] == "nan"
    assert status["promoted"]["not_finite"] == {"step": 4, "metrics": NAN}
    told = " ".join(shown(render_status(status)).split())
    assert "the last validation, at step 4, was not finite: accuracy = nan, loss = nan" in told
    page = (folder / "store/runs/overflow/report.html").read_text()
    assert "The last validation, at step 4, gave values that are not finite numbers" in page
    state = json.loads((Path(status["promoted"]["path"]) / "state.json").read_text())
    assert state["best"] == NOTHING_IS_BEST


@pytest.mark.usefixtures("said")
def test_what_one_rank_writes_of_them_does_not_stop_the_other(runner: Runner, folder: Path, tmp_path: Path) -> None:
    store = LocalStore(folder / "store")
    dataset = load_dataset(store, runner.status()["dataset_digest"])
    # A validation at step 10, so that the saves at 14 and 20 come after it.
    spec = make_spec(store, dataset, tmp_path / "segment", ranks=2, precision="fp16")
    assert train_forked(spec, store).outcome == "completed"
    for step in (14, 20):
        assert read_state(store, checkpoint_at(store, step, spec.fence))["best"] == NOTHING_IS_BEST
