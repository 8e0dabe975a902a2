"""A run that goes on with something else than it was begun with says so, wherever it would promise one model."""

from pathlib import Path

import pytest

from tests.helpers.commands import Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

PROMISE = "The model is the one that an uninterrupted run makes"


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    store = tmp_path / "store"
    configuration = write_tiny_configuration(tmp_path, "changed", store, tmp_path / "data")
    settings = {"run": "changed", "store": store, "train__sum": "fast"}
    return Runner(configuration, settings, prefect_server)


def test_a_complete_run_that_is_extended_on_other_ranks_promises_no_more_than_it_can(runner: Runner) -> None:
    def report() -> str:
        return (Path(runner.settings["store"]) / "runs" / "changed" / "report.html").read_text()

    runner.run()
    assert runner.status()["changes"] == []
    result = runner.call("run", train__steps=6, train__ranks=2)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed  2 times while under way" in result.stdout
    expected = (("train.steps", "4", "6"), ("train.ranks", "1", "2"))
    for change, fields in zip(runner.status()["changes"], expected, strict=True):
        assert (change["step"], change["what"], change["before"], change["now"]) == (4, *fields)
    assert PROMISE not in report() and "train.steps was 4 up to step 4 and 6 from there on" in report()
