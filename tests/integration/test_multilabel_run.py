"""A run whose rows have any number of labels, to its report and its exported model, with one answer everywhere."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.checkpoints.results import find_calibration, find_evaluation
from storage.runs.manifest import Manifest
from tests.helpers.commands import call_here
from tests.helpers.exported_runs import Exported, export_tagged
from tests.helpers.pretrained import write_tiny_bert
from training.export.standalone.holdfast_model import load_model

pytestmark = pytest.mark.usefixtures("transformers")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("tagged")
    return export_tagged(folder, name=str(write_tiny_bert(folder / "bert")), pooling="cls")


def test_predict_the_exported_folder_and_transformers_have_the_same_labels_and_probabilities(
    tagged: Exported, tmp_path: Path, transformers: Any
) -> None:
    done = call_here(["predict", tagged.folder, tagged.data, tmp_path / "found.parquet"])
    assert done.returncode == 0, done.stderr
    found, rows = pq.read_table(tmp_path / "found.parquet"), pq.read_table(tagged.data).to_pylist()
    assert found.schema.field("predicted").type == pa.list_(pa.string())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tagged.folder).eval()
    assert theirs.config.problem_type == "multi_label_classification"
    model = load_model(tagged.folder)
    answers = model.predict(rows)
    texts = [row["text"] for row in rows]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tagged.folder)
    logits = theirs(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    for row, (answer, expected) in enumerate(zip(answers, logits.sigmoid().tolist(), strict=True)):
        assert list(answer["probabilities"]) == list(theirs.config.id2label.values()) == model.classes
        assert list(answer["probabilities"].values()) == pytest.approx(expected, abs=1e-5)
        assert answer["labels"] == [name for name, number in answer["probabilities"].items() if number > 0.5]
        assert found.column("predicted")[row].as_py() == answer["labels"]
        of_row = [found.column(f"probability_{name}")[row].as_py() for name in model.classes]
        assert of_row == pytest.approx(list(answer["probabilities"].values()), abs=1e-6)
    assert torch.isfinite(logits).all()


def test_the_lines_of_the_card_print_labels_and_probabilities(tagged: Exported) -> None:
    _, _, block = (tagged.folder / "README.md").read_text().partition("```python\n")
    lines = [sys.executable, "-c", block.partition("```")[0]]
    done = subprocess.run(lines, cwd=tagged.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[") and all(repr(name) in done.stdout for name in tagged.dataset.target.classes)


def test_the_report_the_card_and_status_have_scores_and_a_threshold_for_each_label(
    tagged: Exported, tmp_path: Path
) -> None:
    state = Manifest(tagged.store, tagged.run).load_head().state
    evaluation = find_evaluation(tagged.store, state.promoted)
    calibration = find_calibration(tagged.store, state.promoted)
    assert evaluation is not None and calibration is not None
    names = tagged.dataset.target.classes
    support = [sum(name in labels for labels in tagged.labels) for name in names]
    assert [entry["support"] for entry in evaluation["per_class"]] == support
    assert [entry["class"] for entry in calibration["thresholds"]["per_class"]] == names
    page = tmp_path / "report.html"
    done = call_here(["report", tagged.address, "--out", page])
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    for words in ("Best threshold of each class", "ROC AUC", "There is no confusion matrix", "mean average precision"):
        assert words in text
    assert "F1 on test" in (tagged.folder / "README.md").read_text()
    done = call_here(["status", tagged.address, "--json"])
    assert "mean_average_precision" in json.dumps(json.loads(done.stdout))
