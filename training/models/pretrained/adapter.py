"""An adapter alone, in the form in which peft loads it over the model that it was trained on.

Where the head has the form that transformers gives it, the adapter has the head too, and is one of its model for
classification; else it is one of the encoder, and what stands behind the encoder is in a file of its own. Invariant:
what is said of the files is said after peft has loaded them, and its answers were those of the trained model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.utils import logging

from storage.datasets import Target
from storage.errors import ConfigurationError
from training.export.standalone.holdfast_pretrained import attention_of, make_config, make_encoder
from training.model_configuration import PretrainedConfig
from training.models.pretrained import lora
from training.models.pretrained.exported import LARGEST_DIFFERENCE, PROBE_TOKENS, labels_of
from training.models.pretrained.network import probed
from training.targets.registry import kind_of

CONFIG_FILE, WEIGHTS_FILE, HEAD_FILE = "adapter_config.json", "adapter_model.safetensors", "head.safetensors"
CLASSIFICATION, FEATURES = "SEQ_CLS", "FEATURE_EXTRACTION"
CLASSIFIER = "classifier"
# What peft puts before the names of the model that it adapts, and between those of a layer and its matrices' type.
PREFIX, NAMED_ADAPTER = "base_model.model.", f".{lora.ADAPTER}."


def write_adapter(weights: Sequence[Path], folder: Path, config: PretrainedConfig, target: Target) -> dict[str, Any]:
    """Write the adapter that is among a model's tensors, in the files `weights`; how it is loaded, JSON-able.

    Raises `ConfigurationError` where peft does not give the trained model's answers with it.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tensors = {name: tensor for path in weights for name, tensor in load_file(path).items()}
    parts = _Parts(tensors, config)
    if parts.is_plain_head and _write_for_classification(parts, folder, target):
        return _described(config, CLASSIFICATION, target)
    if not _write_for_features(parts, folder):
        raise ConfigurationError(
            f"peft does not give the trained model's answers with the adapter alone, over {config.name!r}. Export the "
            "merged model, without --adapter."
        )
    return _described(config, FEATURES, target)


class _Parts:
    """The tensors of a model with adapters: the encoder's own, what was trained of it, and what stands behind it."""

    def __init__(self, tensors: Mapping[str, Tensor], config: PretrainedConfig) -> None:
        self.config = config
        self.encoder = make_encoder(probed(config))
        self.prefix = f"{self.encoder.base_model_prefix}."
        self.has_pooler = getattr(self.encoder, lora.POOLER, None) is not None
        lora.add_adapters(self.encoder, config)
        of_encoder = {n.removeprefix(self.prefix): t for n, t in tensors.items() if n.startswith(self.prefix)}
        self.encoder.load_state_dict(of_encoder)
        self.encoder.eval()
        self.head = {name: tensor for name, tensor in tensors.items() if not name.startswith(self.prefix)}
        trained = [n for n in of_encoder if lora.is_of_adapter(n) or n.startswith(f"{lora.POOLER}.")]
        self.trained = {name.replace(NAMED_ADAPTER, "."): of_encoder[name] for name in trained}
        self.own = {n.replace(".base_layer.", "."): t for n, t in of_encoder.items() if not lora.is_of_adapter(n)}

    @property
    def is_plain_head(self) -> bool:
        """Whether one layer alone stands behind the encoder."""
        return all(name.startswith(f"{CLASSIFIER}.") for name in self.head)

    @torch.no_grad()
    def answers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [1, T], and what the encoder makes of them: its vectors [1, T, D], and what it pools [1, D]."""
        tokens = 1 + torch.arange(PROBE_TOKENS)[None] * 7 % (self.encoder.config.vocab_size - 1)
        found = self.encoder(input_ids=tokens, attention_mask=torch.ones_like(tokens), return_dict=True)
        vectors: Tensor = found.last_hidden_state
        pooled = getattr(found, "pooler_output", None)
        return tokens, vectors, vectors[:, 0] if pooled is None else pooled


@torch.no_grad()
def _write_for_classification(parts: _Parts, folder: Path, target: Target) -> bool:
    """Whether peft loads what was written, over the model for classification, and its logits are ours."""
    config = make_config(parts.config.pin.read_config() | labels_of(target))
    try:
        base = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention_of(config))
    except (ValueError, KeyError):
        return False  # there is no such model
    saved = [CLASSIFIER, *([lora.POOLER] if parts.has_pooler else [])]
    _write(parts, folder, parts.prefix, parts.head, task_type=CLASSIFICATION, modules_to_save=saved)
    theirs = _load(base, {f"{parts.prefix}{name}": tensor for name, tensor in parts.own.items()}, folder)
    tokens, _, pooled = parts.answers()
    expected = torch.nn.functional.linear(pooled, *(parts.head[f"{CLASSIFIER}.{name}"] for name in ("weight", "bias")))
    return theirs is not None and _is_close(theirs(input_ids=tokens).logits, expected)


@torch.no_grad()
def _write_for_features(parts: _Parts, folder: Path) -> bool:
    config = make_config(parts.config.pin.read_config())
    base = AutoModel.from_config(config, attn_implementation=attention_of(config))
    saved = [lora.POOLER] if parts.has_pooler else None
    _write(parts, folder, "", {}, task_type=FEATURES, modules_to_save=saved)
    save_file(parts.head, folder / HEAD_FILE, metadata={"format": "pt"})
    theirs = _load(base, parts.own, folder)
    tokens, vectors, _ = parts.answers()
    return theirs is not None and _is_close(theirs(input_ids=tokens).last_hidden_state, vectors)


def _write(parts: _Parts, folder: Path, prefix: str, head: Mapping[str, Tensor], **more: Any) -> None:
    """Both files of peft, for a model in which the encoder's tensors begin with `prefix`."""
    # Of a pooling layer that the trained model lacks, too: the model that peft loads may have one.
    given = lora.peft_config(parts.config, has_pooler=True, inference_mode=True, **more)
    given.base_model_name_or_path = parts.config.name
    given.save_pretrained(str(folder))
    path = folder / CONFIG_FILE
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content["target_modules"], list):  # which comes in the order of a set
        content["target_modules"].sort()
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tensors = {f"{PREFIX}{prefix}{name}": tensor for name, tensor in parts.trained.items()}
    tensors |= {f"{PREFIX}{name}": tensor for name, tensor in head.items()}
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _load(base: Any, own: Mapping[str, Tensor], folder: Path) -> Any:
    """The model of peft in the folder over `base` with the weights `own`; None where they do not go together."""
    if base.load_state_dict(dict(own), strict=False).unexpected_keys:
        return None
    try:
        return PeftModel.from_pretrained(base.float(), str(folder)).eval()
    except (ValueError, KeyError, RuntimeError):
        return None


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and bool((found - expected).abs().max() <= LARGEST_DIFFERENCE)


def _described(config: PretrainedConfig, task: str, target: Target) -> dict[str, Any]:
    num_outputs = kind_of(target).num_outputs
    return {"base": config.name, "files": config.pin.files, "task": task, "num_outputs": num_outputs}
