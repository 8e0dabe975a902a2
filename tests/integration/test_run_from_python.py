"""`holdfast.run` with what a program or a notebook has in hand: fields, a function of a module, a table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast import functions, given
from holdfast.child import HoldfastError, call
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.commands import ROOT
from tests.helpers.own_modules import write_module
from tests.helpers.parquet import text_columns

FIELDS: dict[str, Any] = {
    "run": "cell",
    "data": {
        "id": "sample_id", "text": "text", "label": "domain", "kind": "multiclass", "vocabulary_size": 300,
        "max_tokens": 64, "row_group_rows": 16, "shard_rows": 64, "class_names": None,
        "split": {"validation_fraction": 0.2},
    },
    "train": {"steps": 4, "batch_size": 12, "device": "cpu"},
    "checkpoint": {"every_steps": 2},
}  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would be started with."""
    found: list[Any] = []

    def note(command: str, arguments: Any, settings: Any = None, folders: Any = ()) -> dict[str, Any]:
        found.append((command, arguments, settings, list(folders)))
        return {}

    monkeypatch.setattr(functions, "call", note)
    return found


def build(inputs: object) -> None: ...


def test_fields_a_function_and_a_path_become_what_the_command_takes(told: list[Any], tmp_path: Path) -> None:
    holdfast.run(FIELDS, {"train.steps": 9}, model="my_models.py:build", data=tmp_path / "x.csv")
    ((command, (path,), settings, _),) = told
    assert command == "run" and not Path(path).exists(), "nothing is left of it"
    assert settings["train.steps"] == 9 and settings["data.text"] == "text" and settings["run"] == "cell"
    assert settings["data.split"] == {"validation_fraction": 0.2} and "data.class_names" not in settings
    assert settings["store"] == "holdfast-store" and settings["data.source"] == str(tmp_path / "x.csv")
    assert (settings["model.kind"], settings["model.factory"]) == ("module", "my_models.py:build")
    holdfast.run("run.toml", model=build)
    assert told[1][1:] == (
        ["run.toml"],
        {"model.kind": "module", "model.factory": f"{__name__}:build"},
        [str(ROOT)],
    )


def test_a_function_of_a_module_is_named_by_its_file_and_one_of_a_cell_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_module(tmp_path, name="models_of_a_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    import models_of_a_test

    assert given.name_of(models_of_a_test.build) == (f"{path}:build", [])
    monkeypatch.setattr(build, "__module__", "__main__")
    for model in (build, "__main__:build", lambda inputs: None, models_of_a_test.Net(inputs_of_nothing(), 4), 3):
        with pytest.raises(
            HoldfastError, match=r"with %%writefile my_models\.py as the first line of its cell"
        ) as raised:
            given.name_of(model)  # type: ignore[arg-type]
        assert (raised.value.kind, raised.value.exit_code) == ("ConfigurationError", 2)


def inputs_of_nothing() -> Any:
    class Inputs:
        vocabulary_size, max_tokens, num_outputs, num_numeric, category_counts, categorical = 4, 8, 2, 0, (), ()

    return Inputs()


def test_a_table_is_written_once_under_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"text": ["a", None], "n": [1, 2]}
    arrow, frame = pa.table(columns), pd.DataFrame(columns, index=[7, 8])
    first = given.source_of(arrow)
    assert pq.read_table(first).to_pydict() == columns
    written = Path(first).stat().st_mtime_ns
    assert given.source_of(pa.concat_tables([arrow.slice(0, 1), arrow.slice(1)])) == first
    assert Path(first).stat().st_mtime_ns == written
    assert pq.read_table(given.source_of(frame)).column_names == ["text", "n"]
    assert given.source_of(pa.table({**columns, "n": [1, 3]})) != first
    with pytest.raises(
        HoldfastError, match="data is list, expected the path of a table, or a table of pandas or Arrow"
    ):
        given.source_of([1, 2])


def test_what_the_command_shows_is_in_the_cell_where_stderr_is_a_notebooks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HoldfastError):
        call("run", [tmp_path / "none.toml"])
    assert capsys.readouterr().err.startswith("Reading the configuration ")


PROGRAM = """
import json, sys
import holdfast
import my_models
import pandas as pd

fields = json.loads(sys.argv[1])
table = pd.read_parquet("data.parquet")
print(json.dumps(holdfast.run(fields, model=my_models.build, data=table)))
"""


@pytest.mark.slow
def test_a_program_trains_its_own_module_on_a_table_and_goes_on_when_it_is_run_again(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    write_module(tmp_path)
    pq.write_table(pa.table(text_columns(120)), tmp_path / "data.parquet")
    (tmp_path / "program.py").write_text(PROGRAM)
    found: list[dict[str, Any]] = []
    for steps in (4, 6):
        fields = FIELDS | {"train": FIELDS["train"] | {"steps": steps}}
        done = subprocess.run(
            [sys.executable, "program.py", json.dumps(fields)],
            cwd=tmp_path, env={**prefect_server, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("Traceback" not in done.stderr and "my_models.py:build has" in done.stderr) or found
        found.append(json.loads(done.stdout))
    assert [(result["state"], result["step"]) for result in found] == [("completed", 4), ("completed", 6)]
    assert found[1]["address"] == f"{tmp_path}/holdfast-store/runs/cell" and Path(found[1]["report"]).is_file()
    state = Manifest(LocalStore(tmp_path / "holdfast-store"), "cell").load_head().state
    assert len(state.segments) == 2
    model: Any = state.config["model"]
    assert model["factory"] == f"{os.path.realpath(tmp_path)}/my_models.py:build"
