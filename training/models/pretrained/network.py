"""A pretrained model as training uses it: the network of `training/export/standalone`, given a microbatch.

Invariant: microbatches have one group each, so all samples of one are padded to one length.
"""

from torch import Tensor

from storage.datasets import FIRST_VOCABULARY_INDEX, DatasetManifest
from training.batches.tensors import Microbatch
from training.export.standalone.holdfast_pretrained import (
    PretrainedArchitecture,
    PretrainedNetwork,
    attention_of,
    make_config,
)
from training.model_configuration import PretrainedConfig


class PretrainedClassifier(PretrainedNetwork):
    """From a microbatch to logits [B, num_outputs]."""

    def forward(self, microbatch: Microbatch) -> Tensor:  # type: ignore[override]
        return super().forward(microbatch.tokens, microbatch.lengths, microbatch.numeric, microbatch.categorical)


def probed(config: PretrainedConfig) -> PretrainedArchitecture:
    """The network without metadata, with two outputs: for what is asked of the encoder alone."""
    pin = config.pin
    return PretrainedArchitecture(
        pin.read_config(), config.pooling, config.dropout, config.metadata_width,
        pin.padding_index, pin.separator_index, 0, (), 2,
    )  # fmt: skip


def load_encoder(config: PretrainedConfig) -> None:
    """Load the module of the encoder's architecture, which transformers does when it is first asked for."""
    attention_of(make_config(config.pin.read_config()))


def architecture_of(config: PretrainedConfig, dataset: DatasetManifest, num_outputs: int) -> PretrainedArchitecture:
    """What is configured, what was pinned, and what follows from the data set."""
    return PretrainedArchitecture(
        config=config.pin.read_config(),
        pooling=config.pooling,
        dropout=config.dropout,
        metadata_width=config.metadata_width,
        padding_index=config.pin.padding_index,
        separator_index=config.pin.separator_index,
        num_numeric=len(dataset.numeric),
        category_counts=tuple(len(column.vocabulary) + FIRST_VOCABULARY_INDEX for column in dataset.categorical),
        num_outputs=num_outputs,
    )
