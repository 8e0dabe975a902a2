"""Files with modules of a user's own: one that is right, and variations of it that are not, or only look so."""

from pathlib import Path
from typing import Any

from storage.datasets import DatasetManifest
from training.configuration import PinnedCode
from training.model_configuration import ModuleConfig
from training.own_code import hash_files, parse_reference

# A recurrent net over tokens with dropout, metadata, shared weights and a persistent mask of -inf.
RIGHT = """
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.embedding = nn.Embedding(inputs.vocabulary_size, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight  # shared
        self.columns = nn.ModuleList(nn.Embedding(count, 4) for count in inputs.category_counts)
        features = width + 2 * inputs.num_numeric + 4 * len(inputs.categorical)
        self.head = nn.Linear(features, inputs.num_outputs)
        self.register_buffer("window", torch.full((inputs.max_tokens, inputs.max_tokens), float("-inf")).triu(1))
        self.dropout = nn.Dropout(0.2)
        # MORE OF INIT

    def forward(self, tokens, mask, numeric, categorical):
        length = tokens.shape[1]
        vectors = self.dropout(self.embedding(tokens))
        scores = vectors @ vectors.transpose(1, 2) / vectors.shape[-1] ** 0.5 + self.window[:length, :length]
        vectors = scores.softmax(dim=-1) @ torch.tanh(self.second(torch.tanh(self.first(vectors))))
        # MORE OF FORWARD
        pooled = (vectors * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        categories = [column(categorical[:, index]) for index, column in enumerate(self.columns)]
        return self.head(torch.cat([pooled, numeric, *categories], dim=1))


def build(inputs, width=16):
    return Net(inputs, width)
"""
OF_INIT, OF_FORWARD = "# MORE OF INIT", "# MORE OF FORWARD"


def write_module(folder: Path, init: str = "", forward: str = "", head: str = "", name: str = "my_models.py") -> Path:
    """The file of the right module, with a line more in its `__init__` or its `forward`, or at its beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    text = RIGHT.replace(OF_INIT, init or OF_INIT).replace(OF_FORWARD, forward or OF_FORWARD)
    path = folder / name
    path.write_text(f"{head}\n{text}")
    return path


RMSPROP = """
import torch


def build(groups, alpha=0.9):
    return torch.optim.RMSprop(groups, alpha=alpha)
"""


def write_optimizer(folder: Path, text: str = RMSPROP) -> Path:
    """The file of an optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "my_optim.py"
    path.write_text(text)
    return path


def optimizer_settings(path: Path, **options: Any) -> dict[str, Any]:
    """Fields of [train] as a run has them that was begun with the file as it is."""
    text = f"{path}:build"
    files = hash_files(parse_reference(text, "train.optimizer_factory"))
    more = {"optimizer_options": options} if options else {}
    pinned = PinnedCode(function="build", files=files)
    return {"optimizer": "factory", "optimizer_factory": text, "optimizer_pinned": pinned, **more}


def module_config(path: Path, function: str = "build", **options: Any) -> ModuleConfig:
    """As a run has it that was begun with the file as it is."""
    config = ModuleConfig(kind="module", factory=f"{path}:{function}", options=options)
    pinned = PinnedCode(function=function, files=hash_files(config.reference))
    return config.model_copy(update={"pinned": pinned})


def parameters_of(dataset: DatasetManifest) -> int:
    """How many weights the right module has for a data set, those that are shared once."""
    width, columns = 16, [len(column.vocabulary) + 2 for column in dataset.categorical]
    features = width + 2 * len(dataset.numeric) + 4 * len(columns)
    outputs = len(dataset.target.classes)
    own = dataset.vocabulary_size * width + width * width + 2 * width + features * outputs + outputs
    return own + 4 * sum(columns)
