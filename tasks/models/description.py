"""What an exported model takes and gives, as JSON: preprocessing, labels, sizes of the network.

Invariant: a function of the data set's manifest and the configuration alone; its content is what `holdfast_inputs.py`
and `holdfast_model.py` read.
"""

from typing import Any

from storage.datasets import FIRST_VOCABULARY_INDEX, MISSING_INDEX, UNSEEN_INDEX, DatasetManifest
from tasks.configuration.run import DataConfig
from tasks.data.tokenizer import TOKENIZER_FILE
from training.export.standalone.holdfast_model import MODEL_FORMAT
from training.model_configuration import ModelConfig
from training.models.source import source_of
from training.targets.registry import kind_of


def describe_inputs(config: DataConfig, dataset: DatasetManifest) -> dict[str, Any]:
    """`preprocessing.json`: from a row's columns to tokens, numbers and indices of categories."""
    return {
        "format": MODEL_FORMAT,
        "id": config.id,
        "texts": config.text_columns,
        "tokens": config.tokens,
        "attention_mask": config.attention_mask,
        "tokenizer": None if dataset.tokenizer is None else TOKENIZER_FILE,
        "adds_special_tokens": config.tokenizer is not None,
        "vocabulary_size": dataset.vocabulary_size,
        "max_tokens": dataset.max_tokens,
        "too_long": config.too_long,
        "numeric": [column.model_dump(mode="json") for column in dataset.numeric],
        "categorical": [column.model_dump(mode="json") for column in dataset.categorical],
        "missing_index": MISSING_INDEX,
        "unseen_index": UNSEEN_INDEX,
        "first_vocabulary_index": FIRST_VOCABULARY_INDEX,
    }


def describe_labels(dataset: DatasetManifest) -> dict[str, Any]:
    """`labels.json`: the classes in the order of the outputs; of a binary target the one output is for the second."""
    target = dataset.target
    return {"format": MODEL_FORMAT, "column": target.column, "kind": target.kind, "classes": target.classes}


def describe_model(config: ModelConfig, dataset: DatasetManifest, weights: list[str]) -> dict[str, Any]:
    """`model.json`: the sizes of the network, and the files with its weights."""
    architecture = source_of(config).describe(dataset, kind_of(dataset.target).num_outputs)
    return {"format": MODEL_FORMAT, "architecture": architecture, "weights": weights}


def example_row(inputs: dict[str, Any]) -> dict[str, Any]:
    """A row that the model takes, to show how one looks: medians, and the most frequent categories."""
    row: dict[str, Any] = {}
    row |= dict.fromkeys(inputs["texts"], "Where is my parcel?")
    if inputs["tokens"] is not None:
        row[inputs["tokens"]] = [1, 2, 3]
    if inputs["attention_mask"] is not None:
        row[inputs["attention_mask"]] = [1, 1, 1]
    row |= {column["name"]: round(column["median"], 4) for column in inputs["numeric"]}
    return row | {column["name"]: next(iter(column["vocabulary"]), None) for column in inputs["categorical"]}
