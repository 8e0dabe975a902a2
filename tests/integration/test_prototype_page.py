"""The page from a prototype to a run: its blocks are run, and what it says stays does stay."""

import csv
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import functions
from storage.runs.manifest import Manifest
from tasks.config.load import load_configuration
from tests.helpers.commands import ROOT
from tests.helpers.own_modules import optimizer_settings, write_optimizer
from tests.helpers.parquet import WORDS
from tests.helpers.trained_runs import train_run
from tests.unit.training.test_optimizer_state import require_going_on
from training.export.standalone.holdfast_module import ARGUMENTS, ModelInputs

PAGE = (ROOT / "deployments/from-your-prototype.md").read_text(encoding="utf-8")
PROTOTYPE, MODULE, NOTEBOOK, SWEEP, AVERAGE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(CONFIGURATION,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
# So that it is over soon; what is learned is not the matter.
SMALL = (
    "train.steps=4",
    "train.batch_size=12",
    "train.device=cpu",
    "validation.every_steps=2",
    "checkpoint.every_steps=2",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the table that the page has."""
    topics = [topic for _ in range(60) for topic in WORDS]
    with (tmp_path / "requests.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "topic"])
        rows.writerows([f"{WORDS[topic]} number {row}", topic] for row, topic in enumerate(topics))
    (tmp_path / "my_models.py").write_text(MODULE)
    (tmp_path / "run.toml").write_text(CONFIGURATION)
    return tmp_path


def test_the_prototype_runs_and_its_module_stays_word_for_word(folder: Path) -> None:
    assert len(PROTOTYPE.splitlines()) <= 60
    (module,) = re.findall(r"^class .*?(?=\n\n\n)", PROTOTYPE, re.DOTALL | re.MULTILINE)
    assert module in MODULE
    (folder / "prototype.py").write_text(PROTOTYPE.replace("EPOCHS, BATCH = 64, 3, 32", "EPOCHS, BATCH = 64, 1, 32"))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "prototype.py"]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "model.pt").stat().st_size > 0


def test_the_module_is_trained_by_the_configuration(folder: Path) -> None:
    config = load_configuration(folder / "run.toml")
    assert config.train.epochs == 3
    config = load_configuration(folder / "run.toml", SMALL)
    store, _ = train_run(config)
    state = Manifest(store, "requests").load_head().state
    assert state.promoted is not None and state.promoted.step == 4
    model: Any = state.config["model"]
    assert set(model["pinned"]["files"]) == {"my_models.py"}


def test_the_cells_call_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def note(command: str, arguments: Any, settings: Any, folders: Any = ()) -> dict[str, Any]:
        called.append(settings)
        return {"metrics": {"macro_f1": settings.get("train.learning_rate", 0)}, "report": "page"}

    monkeypatch.setattr(functions, "call", note)
    monkeypatch.chdir(folder)
    exec(NOTEBOOK, {})
    assert called[0]["model.factory"] == "my_models.py:build" and Path(called[0]["data.source"]).exists()
    exec(SWEEP, {})
    assert [settings["run"] for settings in called[1:]] == ["rate-0.0003", "rate-0.001", "rate-0.003"]


def test_the_average_of_the_weights_is_in_the_checkpoint(tmp_path: Path) -> None:
    saved = require_going_on(**optimizer_settings(write_optimizer(tmp_path, AVERAGE)))
    assert "average.0.weight" in saved.optimization.tensors()


def test_the_tables_name_all_that_there_is() -> None:
    names = {
        *ModelInputs.__dataclass_fields__,
        *(n for n, _ in inspect.getmembers(ModelInputs, lambda m: isinstance(m, property))),
    }
    for name in (*names, *ARGUMENTS):
        assert f"`{name}`" in PAGE, name
