"""Models with random weights: as training has them for a data set, and as an export would load them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from storage.datasets import DatasetManifest
from training.export.standalone.holdfast_inputs import Inputs
from training.export.standalone.holdfast_model import Model
from training.export.standalone.holdfast_network import Architecture, PaddedNetwork
from training.model_configuration import EncoderConfig, ModelConfig
from training.models.encoder.network import Classifier
from training.models.encoder.source import EncoderSource
from training.targets.registry import kind_of

SIZES = Architecture(
    width=16, layers=2, heads=2, feedforward=32, dropout=0.1, metadata_width=4, vocabulary_size=50, num_positions=16,
    num_numeric=1, category_counts=(4,), num_outputs=3,
)  # fmt: skip
DESCRIBED: dict[str, Any] = {
    "texts": [], "tokens": "ids", "attention_mask": "mask", "vocabulary_size": 50, "max_tokens": 8,
    "too_long": "error", "numeric": [{"name": "n", "mean": 2.0, "standard_deviation": 4.0, "median": 3.0}],
    "categorical": [{"name": "c", "vocabulary": ["a", "3"]}], "missing_index": 0, "unseen_index": 1,
    "first_vocabulary_index": 2, "adds_special_tokens": False,
}  # fmt: skip
ROW: dict[str, Any] = {"ids": [1, 2, 3], "mask": [1, 1, 0], "n": 4, "c": "a"}
INPUTS = Inputs(DESCRIBED, Path())


def make_model(kind: str = "multiclass", classes: Sequence[str] = ("x", "y", "z")) -> Model:
    torch.manual_seed(0)
    network = PaddedNetwork(SIZES)
    return Model(network, INPUTS, {"classes": list(classes), "kind": kind}, torch.device("cpu"))


def make_encoder(config: ModelConfig, dataset: DatasetManifest, checkpointing: bool = False) -> Classifier:
    """Our own encoder for a data set, with weights drawn from torch's generator."""
    assert isinstance(config, EncoderConfig)
    source = EncoderSource(config)
    model = source.build(dataset, kind_of(dataset.target).num_outputs)
    assert isinstance(model, Classifier)
    source.set_activation_checkpointing(model, checkpointing)
    return model
