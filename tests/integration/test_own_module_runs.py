"""Runs with a user's own module and optimizer, by real ranks: the same bits however interrupted, and what is left."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from storage.checkpoints.checkpoints import FoundCheckpoint
from tests.helpers.commands import call_here
from tests.helpers.elastic_kills import kill_at_a_random_moment
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.exported_runs import Exported, export_module
from tests.helpers.own_modules import module_config, optimizer_settings, write_module, write_optimizer
from tests.helpers.training import read_log, train_forked
from training.export.standalone.holdfast_model import ModelFolderError, load_model
from training.spec import SegmentSpec


class OwnRuns(Runs):
    """Segments of one run with a module, and an optimizer, each from a file."""

    def __init__(self, folder: Path, kind: str = "multiclass", **lines: str) -> None:
        super().__init__(folder, kind)
        self._model = module_config(write_module(folder, **lines), width=8)
        self._optimizer = optimizer_settings(write_optimizer(folder), alpha=0.95)

    def next_spec(self, ranks: int, resume: FoundCheckpoint | None = None, **train: Any) -> SegmentSpec:
        return super().next_spec(ranks, resume, model=self._model, **self._optimizer, **train)


def test_one_two_and_three_ranks_and_those_that_were_killed_end_with_the_same_bits(tmp_path: Path) -> None:
    """With a branch that only some microbatches use, and several labels a row."""
    branch = {
        "init": "self.branch = nn.Linear(width, width)",
        "forward": "vectors = vectors + self.branch(vectors) if self.training and len(tokens) % 2 else vectors",
    }
    runs = OwnRuns(tmp_path, "multilabel", **branch)
    expected = runs.train(1)
    specs = [runs.next_spec(2)]
    kill_at_a_random_moment(specs[0], runs, random.Random(5), most_checkpoints=1)
    specs.append(runs.next_spec(3, runs.newest_of(specs[0])))
    assert train_forked(specs[1], runs.store).outcome == "completed", read_log(specs[1])
    for spec in specs:
        for step, found in runs.checkpoints_of(spec).items():
            require_the_same(found, expected[step], runs)
    assert runs.newest_of(specs[1]).index.step == max(expected)
    assert expected[5].index.constants == ["window"]


def test_what_is_refused_ends_the_segment_with_its_sentence_and_no_step(tmp_path: Path) -> None:
    runs = OwnRuns(tmp_path, forward="vectors = functional.dropout(vectors, 0.1)")
    outcome = train_forked(runs.next_spec(2), runs.store)
    assert (outcome.outcome, outcome.is_final, outcome.last_step) == ("failed", True, 0)
    assert "gave other answers for the same samples in evaluation" in outcome.cause


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("own")
    path = write_module(folder / "code", head="import pathlib; pathlib.Path(__file__).with_name('imported').touch()")
    optimizer = {"optimizer": "factory", "optimizer_factory": f"{write_optimizer(folder / 'code')}:build"}
    return export_module(folder, f"{path}:build", **optimizer)


@pytest.fixture
def code(exported: Exported) -> Path:
    """The folder of the user's own code, of which no trace is left that it was imported."""
    folder = exported.folder.parent / "code"
    (folder / "imported").unlink(missing_ok=True)
    return folder


def test_an_export_is_loaded_by_the_users_own_function_and_by_no_other_code(
    exported: Exported, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = json.loads((exported.folder / "files.json").read_text())["sha256"]
    assert {"own_code/my_models.py", "model.onnx"} <= stated.keys()
    assert (exported.folder / "own_code/my_models.py").read_bytes() == (code / "my_models.py").read_bytes()
    with pytest.raises(ModelFolderError, match=r"the function 'build' of my_models\.py builds it"):
        load_model(exported.folder)
    assert not (code / "imported").exists() and not (exported.folder / "own_code/imported").exists()
    monkeypatch.syspath_prepend(code)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    import my_models

    model = load_model(exported.folder, build=my_models.build)
    rows = pq.read_table(exported.data).to_pylist()
    found = [prediction["label"] for prediction in model.predict(rows)]
    alone = torch.cat(
        [model.logits(model.inputs.encode({n: [row[n]] for n in model.inputs.columns})) for row in rows[:9]]
    )
    together = model.logits(model.inputs.encode({name: [row[name] for row in rows] for name in model.inputs.columns}))
    torch.testing.assert_close(alone, together[:9], atol=1e-5, rtol=1e-4)
    done = call_here(["predict", exported.folder, exported.data, tmp_path / "found.parquet"])
    assert done.returncode == 2 and "--factory FILE.py:FUNCTION" in done.stderr
    factory = f"{exported.folder}/own_code/my_models.py:build"  # the copy, as it was named
    done = call_here(["predict", exported.folder, exported.data, tmp_path / "found.parquet", "--factory", factory])
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "found.parquet").column("predicted").to_pylist() == found
    (lines,) = re.findall(r"```python\n(.*?)```", (exported.folder / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", lines], cwd=exported.folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    names = load_file(next(exported.folder.glob("model*.safetensors"))).keys()
    assert {"embedding.weight", "second.weight", "window"} <= names
    (exported.folder / "own_code/imported").unlink()


@pytest.mark.parametrize("command", ["status", "report", "verify", "audit", "scrub", "prune"])
def test_what_only_reads_the_store_imports_nothing(command: str, exported: Exported, code: Path) -> None:
    done = call_here([command, exported.address])
    assert done.returncode == 0, done.stderr
    assert not (code / "imported").exists()


def test_of_an_address_alone_no_code_is_imported(exported: Exported, code: Path, tmp_path: Path) -> None:
    for line in (["evaluate", exported.address], ["export", exported.address, tmp_path / "out"]):
        done = call_here(line)
        assert done.returncode == 2
        assert "no code is imported that a store names. Say where it is" in done.stderr
    assert not (code / "imported").exists()


def test_an_evaluation_takes_the_code_that_is_named_and_no_other(
    exported: Exported, code: Path, tmp_path: Path
) -> None:
    done = call_here(["evaluate", exported.address, "--json", "--factory", f"{code}/my_models.py:build"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"].keys() == {"accuracy", "loss", "macro_f1"}
    other = write_module(tmp_path, head="open(__file__ + '.imported', 'w')")
    done = call_here(["evaluate", exported.address, "--factory", f"{other}:build"])
    assert done.returncode == 2 and "my_models.py was changed" in done.stderr
    assert not Path(f"{other}.imported").exists()
