"""A pretrained model in an exported folder: its code, its ONNX file, and what transformers loads it by.

The tensors have the names that transformers gives them, so where the head is that of its own model for classification
the very files are that model's. Invariant: that is said of a folder only after transformers has loaded it, and its
logits were ours.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification

from storage.datasets import Target
from training.export.standalone.holdfast_model import MODEL_FILE, load_network
from training.export.standalone.holdfast_pretrained import PretrainedNetwork, make_config
from training.export.standalone_code import write_code, write_network
from training.model_configuration import PretrainedConfig
from training.models.pretrained.loading import NOT_LOADED, load
from training.targets.registry import kind_of

CODE_FILE = "holdfast_pretrained.py"
CONFIG_FILE, INDEX_FILE, TOKENIZER_CONFIG_FILE = "config.json", "model.safetensors.index.json", "tokenizer_config.json"
PROBE_TOKENS, LARGEST_DIFFERENCE = 16, 1e-4


def write_export(folder: Path, config: PretrainedConfig, target: Target) -> None:
    """Write the code, and config.json; where transformers can load the model, an index of its tensors as well."""
    write_code(folder, [CODE_FILE])
    if config.pin.tokenizer_config is not None:
        (folder / TOKENIZER_CONFIG_FILE).write_text(config.pin.tokenizer_config, encoding="utf-8")
    content = config.pin.read_config() | labels_of(target)
    _write_json(folder / CONFIG_FILE, content)
    files: list[str] = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))["weights"]
    _write_json(folder / INDEX_FILE, {"metadata": {}, "weight_map": _file_of_each_tensor(folder, files)})
    name = _loaded_by_transformers(folder)
    if name is None:
        (folder / INDEX_FILE).unlink()
    else:
        _write_json(folder / CONFIG_FILE, content | {"architectures": [name]})


def write_onnx(folder: Path, target: Target) -> None:
    """Write `model.onnx` into the folder, from the weights that are there, which predict `target`."""
    network = load_network(folder)
    network.encoder.config._attn_implementation = "eager"  # which the exporter knows for every length
    inputs = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
    write_network(folder, target, network, inputs["max_tokens"])


def labels_of(target: Target) -> dict[str, Any]:
    """The classes by the outputs, and what transformers calls the kind of target."""
    kind = kind_of(target)
    return {
        "id2label": {str(index): name for index, name in enumerate(kind.output_classes)},
        "label2id": {name: index for index, name in enumerate(kind.output_classes)},
        **({} if kind.problem_type is None else {"problem_type": kind.problem_type}),
    }


def _file_of_each_tensor(folder: Path, files: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        with safe_open(folder / file, "pt") as opened:
            found |= {name: file for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
    return dict(sorted(found.items()))


def _loaded_by_transformers(folder: Path) -> str | None:
    """The name of its class that loads the folder and gives our logits; None if there is none."""
    ours = load_network(folder)
    assert isinstance(ours, PretrainedNetwork)
    if ours.hidden is not None:
        return None
    config = make_config(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    try:
        theirs, info = load(AutoModelForSequenceClassification, folder, config)
    except NOT_LOADED:
        return None  # there is no such model, or its head has another form
    if any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        return None
    return type(theirs).__name__ if _is_alike(ours, theirs.eval()) else None


@torch.no_grad()
def _is_alike(ours: PretrainedNetwork, theirs: Any) -> bool:
    tokens = 1 + torch.arange(PROBE_TOKENS)[None] * 7 % (theirs.config.vocab_size - 1)
    none = torch.zeros(1, 0), torch.zeros(1, 0, dtype=torch.int64)
    try:
        logits = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    except (TypeError, ValueError, RuntimeError):
        return False
    found = ours.of_one_length(tokens, *none)
    return found.shape == logits.shape and bool((found - logits).abs().max() <= LARGEST_DIFFERENCE)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
