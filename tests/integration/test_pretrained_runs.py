"""Runs with a pretrained model, trained by real ranks: the same bits however they are interrupted, and what is left."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flows.deployments import export
from storage.checkpoints.checkpoints import FoundCheckpoint, fetch_model, load_checkpoint
from storage.checkpoints.tensor_files import read_entries, weights_sha256
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.configuration.run import RunConfig
from tasks.models.pretrained import pin_model
from tasks.models.pretrained_weights import bring_pretrained_weights
from tasks.run_paths import open_run_paths
from tasks.verification.scrubbing import scrub_store
from tests.helpers import pretrained_modules
from tests.helpers.commands import call_here
from tests.helpers.elastic_kills import kill_at_a_random_moment
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.exported_runs import Exported, export_pretrained
from tests.helpers.onnx_answers import require_same_answers_of_onnx
from tests.helpers.pretrained import write_tiny_bert
from tests.helpers.training import read_log, train_forked
from training.export.standalone.holdfast_inputs import read_inputs
from training.export.standalone.holdfast_model import load_model
from training.spec import SegmentSpec, StartPoint

pytestmark = pytest.mark.usefixtures("transformers")

# Of a BERT with two layers.
HEAD_ALONE: dict[str, Any] = {"frozen_layers": 2}
LORA: dict[str, Any] = {"lora": {"rank": 2, "dropout": 0.2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("pretrained") / "model")


class PretrainedRuns(Runs):
    """Segments of one run that begins with the weights of the model in a folder, which is gone before they begin."""

    def __init__(self, folder: Path, model: Path, **settings: Any) -> None:
        super().__init__(folder)
        data = {"source": "/none", "text": "text", "label": "label", "kind": "multiclass", "max_tokens": 24}
        values = {"run": "small", "store": str(folder / "store"), "data": data}
        copied = shutil.copytree(model, folder / "model")
        named = {"kind": "pretrained", "name": str(copied), **settings}
        config = pin_model(RunConfig.model_validate(values | {"model": named}))
        start = bring_pretrained_weights(config, open_run_paths(config))
        shutil.rmtree(copied)
        self._own = {
            "model": config.model,
            "start": StartPoint(path=start.path, digest=start.digest, frozen=start.frozen),
        }

    def next_spec(self, ranks: int, resume: FoundCheckpoint | None = None, **train: Any) -> SegmentSpec:
        return super().next_spec(ranks, resume, **train).model_copy(update=self._own)


# A head alone is trained, saved without the encoder and evaluated with it below.
@pytest.mark.parametrize(
    "settings", [{}, pytest.param(HEAD_ALONE, marks=pytest.mark.slow), LORA], ids=["all", "head alone", "LoRA"]
)
def test_one_two_and_three_ranks_and_those_that_were_killed_end_with_the_same_bits(
    settings: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    runs = PretrainedRuns(tmp_path, folder, **settings)
    expected = runs.train(1)
    specs = [runs.next_spec(2)]
    kill_at_a_random_moment(specs[0], runs, random.Random(5), most_checkpoints=1)
    specs.append(runs.next_spec(3, runs.newest_of(specs[0]), activation_checkpointing=True))
    assert train_forked(specs[1], runs.store).outcome == "completed", read_log(specs[1])
    for spec in specs:
        for step, found in runs.checkpoints_of(spec).items():
            require_the_same(found, expected[step], runs)
    newest = runs.newest_of(specs[1])
    assert newest.index.step == max(expected)
    whole = {entry.name for path in fetch_model(runs.store, newest) for entry in read_entries(path)}
    held = {entry.name for path in fetch_own(runs.store, newest) for entry in read_entries(path)}
    assert (held == whole) == (not settings)


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """With a head of the form that transformers has, trained when the model's folder was there."""
    return export_pretrained(tmp_path_factory.mktemp("plain"), metadata=False, name=str(folder), pooling="cls")


def test_the_export_is_loaded_by_transformers_alone_and_has_the_answers_of_predict(
    plain: Exported, tmp_path: Path, transformers: Any
) -> None:
    done = call_here(["predict", plain.folder, plain.data, tmp_path / "found.parquet"])
    assert done.returncode == 0, done.stderr
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(plain.folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(plain.folder)
    model = load_model(plain.folder)
    texts = ["pay the card bill again", "book a flight to oslo", "plan " * 40]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=24)
    logits = theirs(**encoded).logits
    ours = model.logits(model.inputs.encode({"text": texts}))
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-4)
    assert list(theirs.config.id2label.values()) == model.classes
    rows = read_inputs(plain.folder).encode({"text": texts}).tokens
    assert [len(ids) for ids in rows] == encoded["attention_mask"].sum(dim=1).tolist()


def test_a_scrub_reads_the_first_weights_too(plain: Exported) -> None:
    state = Manifest(plain.store, plain.run).load_head().state
    assert state.start is not None and state.start.step == 0
    assert scrub_store(plain.store, plain.run)["ok"]
    path = Path(plain.store.address) / state.start.path / "pretrained.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (rot,) = scrub_store(plain.store, plain.run)["damaged"]
    path.write_bytes(content)
    assert (rot["kind"], path.name in rot["message"]) == ("start", True)


def test_a_head_alone_is_saved_without_the_encoder_and_evaluated_and_exported_with_it(
    folder: Path, tmp_path: Path, transformers: Any
) -> None:
    exported = export_pretrained(tmp_path, metadata=False, name=str(folder), pooling="cls", **HEAD_ALONE)
    state = Manifest(exported.store, exported.run).load_head().state
    assert state.promoted is not None and state.is_complete
    found = load_checkpoint(exported.store, state.promoted.path, state.promoted.digest)
    held = {entry.name for path in fetch_own(exported.store, found) for entry in read_entries(path)}
    assert held == {f"{part}.{name}" for part in ("bert.pooler.dense", "classifier") for name in ("weight", "bias")}
    files = [exported.folder / "model.safetensors"]
    assert weights_sha256(files) == state.promoted.weights_sha256
    before = transformers.AutoModel.from_pretrained(folder).state_dict()
    after = transformers.AutoModelForSequenceClassification.from_pretrained(exported.folder).state_dict()
    frozen = [name for name in before if not name.startswith("pooler.")]
    assert all(torch.equal(before[name], after[f"bert.{name}"]) for name in frozen)
    done = call_here(["predict", exported.folder, exported.data, tmp_path / "found.parquet"])
    assert done.returncode == 0, done.stderr


def test_adapters_are_merged_into_an_export_or_stay_apart_as_peft_loads_them(
    folder: Path, tmp_path: Path, transformers: Any, peft: Any
) -> None:
    exported = export_pretrained(tmp_path, metadata=False, name=str(folder), pooling="cls", **LORA)
    model = load_model(exported.folder)
    encoded = model.inputs.encode({"text": ["pay the card bill again", "book a flight to oslo"]})
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(exported.folder)
    assert set(merged.state_dict()) == set(load_file(exported.folder / "model.safetensors"))
    pretrained_modules.exported.write_onnx(exported.folder, exported.dataset.target)
    require_same_answers_of_onnx(exported, exported.folder)
    out = tmp_path / "adapter"
    done = call_here(["export", exported.address, out, "--checkpoint", "newest", "--adapter"])
    assert done.returncode == 0, done.stderr
    by_flow = export.fn(exported.address, str(out), "newest", overwrite=True, adapter=True)
    assert by_flow.is_completed(), by_flow.message
    assert (out / "adapter_model.safetensors").stat().st_size * 4 < (
        exported.folder / "model.safetensors"
    ).stat().st_size
    theirs = peft.AutoPeftModelForSequenceClassification.from_pretrained(out, num_labels=len(model.classes)).eval()
    rows = [torch.tensor([list(ids)]) for ids in encoded.tokens]
    logits = torch.cat([theirs(input_ids=tokens).logits for tokens in rows])
    torch.testing.assert_close(logits, model.logits(encoded), atol=1e-5, rtol=1e-4)
    done = call_here(["predict", out, exported.data, tmp_path / "found.parquet"])
    assert done.returncode != 0 and "no exported model" in done.stderr and "Traceback" not in done.stderr
    card = (out / "README.md").read_text()
    assert "AutoPeftModelForSequenceClassification" in card and "load_model" not in card


def fetch_own(store: LocalStore, found: FoundCheckpoint) -> list[Path]:
    """The files of the model's tensors that the checkpoint itself has."""
    return [store.fetch(found.key_of(name)) for name in found.index.model_files]


def test_with_metadata_the_export_has_our_own_loader_alone(folder: Path, tmp_path: Path) -> None:
    exported = export_pretrained(tmp_path, metadata=True, name=str(folder))
    done = call_here(["predict", exported.folder, exported.data, tmp_path / "found.parquet"])
    assert done.returncode == 0, done.stderr
    assert not (exported.folder / "model.safetensors.index.json").exists()
    assert "architectures" not in json.loads((exported.folder / "config.json").read_text())
    model = load_model(exported.folder)
    assert model.predict({"text": "pay the card bill", "age": None})["label"] in model.classes
