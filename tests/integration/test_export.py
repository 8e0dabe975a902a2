"""From a trained run to an exported folder, and from that to predictions: the answers are those of the evaluation.

One run for each job, trained once: text with metadata, and tokens with metadata.
"""

import ast
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from flows.deployments import export
from storage.checkpoints.results import find_calibration
from storage.objects.addresses import open_store
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.commands import call_here
from tests.helpers.exported_runs import Exported, export_policy, export_quality
from tests.helpers.onnx_answers import encode_all, require_same_answers_of_onnx
from tests.helpers.parquet import read_split
from tests.helpers.s3_server import BUCKET, make_bucket, use_s3
from training.export.standalone.holdfast_model import ModelFolderError, load_model, verify
from training.export.standalone_code import CODE_FILES, standalone_code
from training.metrics.scores import score
from training.models.encoder.exported import write_encoder
from training.targets.registry import kind_of

ROOT = Path(__file__).parents[2]
# What torch needs of others to be imported, as its own wheel says. NumPy is not among them.
OF_TORCH = ("typing_extensions", "filelock", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec")
ALLOWED = ("torch", "torchgen", "functorch", "safetensors", "tokenizers", *OF_TORCH)
FORBIDDEN = ("prefect", "duckdb", "numpy", "pyarrow", "pydantic", "flows", "tasks", "training", "storage")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_quality(tmp_path_factory.mktemp("quality"))


@pytest.fixture(params=["policy", "quality"])
def exported(request: pytest.FixtureRequest) -> Exported:
    found: Exported = request.getfixturevalue(request.param)
    return found


def test_rows_become_what_the_preparation_made_of_them_to_the_last_bit(exported: Exported) -> None:
    prepared = {row["id"]: row for row in read_split(exported.store, exported.dataset, "test").to_pylist()}
    encoded = encode_all(exported)
    rows = [prepared[str(name)] for name in pq.read_table(exported.data).column("id").to_pylist()]
    assert [ids.tolist() for ids in encoded.tokens] == [row["tokens"] for row in rows]
    assert encoded.numeric.tolist() == [[*row["numeric"], *row["missing"]] for row in rows]
    assert encoded.categorical.tolist() == [row["categorical"] for row in rows]


def test_predictions_have_the_metrics_of_the_evaluation(exported: Exported, tmp_path: Path) -> None:
    result = tmp_path / "result.parquet"
    done = call_here(["predict", exported.folder, exported.data, result])
    assert done.returncode == 0, done.stderr
    table, data = pq.read_table(result), pq.read_table(exported.data)
    classes = exported.dataset.target.classes
    assert table.column_names == ["id", "predicted", *(f"probability_{name}" for name in classes)]
    assert table.column("id").equals(data.column("id"))
    probabilities = np.stack([table.column(f"probability_{name}").to_numpy() for name in classes], axis=1)
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert table.column("predicted").to_pylist() == [classes[place] for place in probabilities.argmax(axis=1)]
    logits = torch.from_numpy(np.log(probabilities))
    logits = logits[:, 1:] - logits[:, :1] if len(classes) == 2 else logits
    labels = torch.tensor([classes.index(label) for label in exported.labels])
    target = exported.dataset.target
    expected = Manifest(exported.store, exported.run).load_head().state.metrics
    assert expected is not None
    assert score(logits, labels, kind_of(target)) == pytest.approx(expected, abs=1e-5)


def test_calibrated_probabilities_are_those_of_the_temperature_that_was_fitted(
    exported: Exported, tmp_path: Path
) -> None:
    state = Manifest(exported.store, exported.run).load_head().state
    calibration = find_calibration(exported.store, state.promoted)
    assert calibration is not None
    assert json.loads((exported.folder / "calibration.json").read_text()) == calibration
    assert f"Temperature {calibration['temperature']:.4f}" in (exported.folder / "README.md").read_text()
    rows = pq.read_table(exported.data).slice(0, 9)
    pq.write_table(rows, tmp_path / "rows.parquet")
    done = call_here(
        ["predict", "--calibrated", exported.folder, tmp_path / "rows.parquet", tmp_path / "result.parquet"]
    )
    assert done.returncode == 0, done.stderr
    plain = load_model(exported.folder).predict(rows.to_pylist())
    table = pq.read_table(tmp_path / "result.parquet").to_pylist()
    for row, before in zip(table, plain, strict=True):
        assert row["predicted"] == before["label"]
        scaled = {name: value ** (1 / calibration["temperature"]) for name, value in before["probabilities"].items()}
        for name, value in scaled.items():
            assert row[f"probability_{name}"] == pytest.approx(value / sum(scaled.values()), abs=1e-9)


def test_where_there_is_no_temperature_calibrated_probabilities_are_refused(policy: Exported, tmp_path: Path) -> None:
    done = call_here(["export", policy.address, tmp_path / "model", "--checkpoint", "2", "--no-onnx"])
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "model/calibration.json").exists()
    asked = call_here(["predict", "--calibrated", tmp_path / "model", policy.data, tmp_path / "result.parquet"])
    assert asked.returncode == 2 and "is not calibrated: it was not evaluated" in asked.stderr
    for folder, why in ((tmp_path / "model", "it was not evaluated"), (policy.folder, "several classes")):
        with pytest.raises(ModelFolderError, match=why):
            load_model(folder, fitted_thresholds=True)


def test_by_fitted_thresholds_as_many_rows_are_positive_as_the_evaluation_counted(
    quality: Exported, tmp_path: Path
) -> None:
    best = json.loads((quality.folder / "calibration.json").read_text())["thresholds"]["best"]
    done = call_here(["predict", "--fitted-thresholds", quality.folder, quality.data, tmp_path / "result.parquet"])
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "result.parquet").to_pylist()
    positive = load_model(quality.folder).classes[1]
    predicted = [row["predicted"] == positive for row in rows]
    assert predicted == [row[f"probability_{positive}"] >= best["threshold"] for row in rows]
    assert sum(predicted) == best["measured"]["num_positive"]


def test_what_was_found_of_an_earlier_checkpoint_is_in_its_export(policy: Exported, tmp_path: Path) -> None:
    evaluated = call_here(["evaluate", policy.address, "--checkpoint", "4", "--json"])
    assert evaluated.returncode == 0, evaluated.stderr
    done = call_here(["export", policy.address, tmp_path / "model", "--checkpoint", "4", "--no-onnx"])
    assert done.returncode == 0, done.stderr
    found, result = json.loads((tmp_path / "model/metrics.json").read_text()), json.loads(evaluated.stdout)
    assert (found["step"], found["test"]["metrics"]) == (4, result["metrics"])
    assert json.loads((tmp_path / "model/calibration.json").read_text())["temperature"] is not None


def test_the_onnx_file_gives_the_same_answers_for_any_number_of_rows_of_any_length(policy: Exported) -> None:
    require_same_answers_of_onnx(policy, policy.folder)


def test_the_onnx_file_has_no_path_of_the_machine_that_wrote_it(policy: Exported) -> None:
    content = (policy.folder / "model.onnx").read_bytes()
    for path in (ROOT, Path(sys.prefix), Path(torch.__file__).parent, policy.folder.parent):
        assert str(path).encode() not in content
    for of_python in (b"stack_trace", b"class_hierarchy", b"site-packages"):
        assert of_python not in content


@pytest.mark.slow
def test_the_onnx_file_of_a_binary_model_gives_the_same_answers(quality: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(quality.folder, folder)
    write_encoder(folder, quality.dataset.target)
    require_same_answers_of_onnx(quality, folder)
    first = (folder / "model.onnx").read_bytes()
    write_encoder(folder, quality.dataset.target)
    assert (folder / "model.onnx").read_bytes() == first


def test_the_lines_of_an_exports_readme_do_in_a_process_with_torch_and_safetensors_alone(
    quality: Exported, tmp_path: Path
) -> None:
    (lines,) = code_blocks(quality.folder / "README.md")
    moved = tmp_path / "moved"
    shutil.copytree(quality.folder, moved)
    (answer,) = run_with_torch_alone(lines, moved, tmp_path)
    assert answer.split(" ", 1)[0] in quality.dataset.target.classes


def test_the_ten_lines_of_our_readme_do_so_too_and_tokenise(policy: Exported, tmp_path: Path) -> None:
    (ours,), (theirs,) = code_blocks(ROOT / "README.md"), code_blocks(policy.folder / "README.md")
    assert len(ours.splitlines()) <= 10
    shutil.copytree(policy.folder, tmp_path / "requests-model")
    lines = f"{ours}\nimport os\nos.chdir('requests-model')\n{theirs}"
    answers = run_with_torch_alone(lines, tmp_path, tmp_path)
    assert [answer.split(" ", 1)[0] in policy.dataset.target.classes for answer in answers] == [True, True]


def code_blocks(readme: Path) -> list[str]:
    return [block.partition("```")[0] for block in readme.read_text().split("```python\n")[1:]]


def run_with_torch_alone(lines: str, folder: Path, tmp_path: Path) -> list[str]:
    """What the lines print in `folder`, line by line, in a process that finds torch, and what it needs, and no more."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ALLOWED:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        (site / found.name).symlink_to(found)
    check = (
        "import sys\nfrom importlib.util import find_spec\n"
        f"assert not [name for name in {FORBIDDEN} if name in sys.modules or find_spec(name)]\n"
    )
    program = f"import sys\nsys.path.append({str(site)!r})\n{check}{lines}\n{check}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_that_was_changed_is_named(policy: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(policy.folder, folder)
    verify(folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        with pytest.raises(ModelFolderError, match=path.name):
            verify(folder)
        path.unlink()
        with pytest.raises(ModelFolderError, match=path.name):
            verify(folder)
        path.write_bytes(whole)
    verify(folder)


def test_the_card_says_where_the_model_comes_from(exported: Exported) -> None:
    card, stated = (exported.folder / "README.md").read_text(), json.loads((exported.folder / "files.json").read_text())
    state = Manifest(exported.store, exported.run).load_head().state
    assert state.promoted is not None
    for fact in (state.promoted.weights_sha256, state.promoted.digest, state.dataset_digest, state.dataset_sha256):
        assert str(fact) in card
    provenance = json.loads((exported.folder / "provenance.json").read_text())
    assert provenance["ledger_head"]["sha256"] in card
    assert all(digest in card for name, digest in stated["sha256"].items() if name != "README.md")
    assert set(stated["sha256"]) | {"files.json"} == {path.name for path in exported.folder.iterdir()}
    metrics = json.loads((exported.folder / "metrics.json").read_text())
    assert metrics["test"]["metrics"] == state.metrics
    assert f"{metrics['validation']['metrics']['macro_f1']:.4f}" in card


def test_the_code_in_the_folder_is_that_of_training_and_imports_no_other(policy: Exported) -> None:
    for name in CODE_FILES:
        code = (policy.folder / name).read_text()
        ours = (ROOT / "training/export/standalone" / name).read_text()
        assert code == standalone_code(name) == ours.replace("from training.export.standalone.", "from ")
        nodes = list(ast.walk(ast.parse(code)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        own = {
            f"holdfast_{part}" for part in ("network", "pretrained", "module", "texts", "inputs", "targets", "model")
        }
        allowed = {*sys.stdlib_module_names, "torch", "safetensors", "tokenizers", *own}
        assert {found.partition(".")[0] for found in names} <= allowed


def test_what_cannot_be_exported_is_one_error_and_changes_nothing(policy: Exported, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep me")
    for arguments, said in (
        ([mine], "is no exported model"),
        ([mine, "--overwrite"], "is no exported model"),
        ([policy.folder], "Give --overwrite to replace it"),
        ([tmp_path / "new", "--checkpoint", "5"], "keeps no checkpoint of step 5"),
        ([policy.data / "out", "--no-onnx"], "Cannot write the folder"),
        ([tmp_path / ("x" * 300), "--no-onnx"], "File name too long"),
    ):
        done = call_here(["export", policy.address, *arguments])
        assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (mine / "notes.txt").read_text() == "keep me"


def test_a_damaged_checkpoint_is_not_exported_and_an_earlier_export_stays(policy: Exported, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    shutil.copytree(policy.store.root, store.root, symlinks=True)
    out, address = tmp_path / "out", f"{store.address}/runs/{policy.run}"
    assert call_here(["export", address, out, "--no-onnx"]).returncode == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    state = Manifest(store, policy.run).load_head().state
    for record in state.kept:
        weights = store.root / record.path / "model.safetensors"
        damaged = bytearray(weights.read_bytes())
        damaged[-5] ^= 1
        weights.unlink()
        weights.write_bytes(damaged)
    done = call_here(["export", address, out, "--no-onnx", "--overwrite"])
    assert done.returncode == 2
    assert "was changed after it was written" in done.stderr and "--checkpoint" in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}


def test_an_earlier_export_is_replaced_and_each_kept_step_can_be_exported(policy: Exported, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps = []
    for choice in ("2", "newest"):
        done = call_here(["export", policy.address, out, "--checkpoint", choice, "--no-onnx", "--overwrite", "--json"])
        steps.append(json.loads(done.stdout)["step"])
        assert json.loads((out / "provenance.json").read_text())["step"] == steps[-1]
    assert steps == [2, 6]
    verify(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_flow_behind_the_deployment_writes_the_folder_that_the_command_writes(
    quality: Exported, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    state = export.fn(quality.address, str(out), "newest", with_onnx=False)
    assert state.type == "COMPLETED"
    assert str(state.message).startswith("requests as of step 6, ROC AUC 0.")
    assert json.loads((out / "files.json").read_text()) == json.loads((quality.folder / "files.json").read_text())
    refused = export.fn(quality.address, str(out), "newest", with_onnx=False)
    assert refused.type == "FAILED" and "--overwrite" in str(refused.message)
    refused = export.fn(quality.address, str(tmp_path / "adapter"), "newest", adapter=True)
    assert refused.type == "FAILED" and "model.lora" in str(refused.message)


def test_a_run_in_a_bucket_is_exported_alike(
    quality: Exported, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    make_bucket(s3_endpoint)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where copies are kept
    store, out = open_store(f"s3://{BUCKET}/exported"), tmp_path / "out"
    for key in quality.store.list_keys(""):
        store.write(key, quality.store.read(key))
    done = call_here(["export", f"{store.address}/runs/{quality.run}", out, "--checkpoint", "newest", "--no-onnx"])
    assert done.returncode == 0, done.stderr
    verify(out)
    for name in ("model.safetensors", "model.json", "preprocessing.json", "labels.json", "metrics.json"):
        assert (out / name).read_bytes() == (quality.folder / name).read_bytes()
