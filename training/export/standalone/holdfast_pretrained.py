"""A pretrained encoder of transformers, joined with the metadata before a new head.

Invariant: padding never reaches the result, so a sample's logits do not depend on what it was padded to, up to
rounding. The encoder is built from its config.json alone: no file is looked for, and no code of a model's own is run.
This file imports torch, transformers and the file beside it alone, since an exported model has a copy of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.export.standalone.holdfast_network import (
    INITIAL_STANDARD_DEVIATION,
    MetadataEncoder,
    mean_over_real_tokens,
)

try:
    from transformers import CONFIG_MAPPING, AutoModel, PreTrainedConfig
except ImportError as error:
    raise ImportError(
        "A pretrained model needs the package transformers: pip install 'holdfast[pretrained]', or transformers alone"
    ) from error


@dataclass(frozen=True)
class PretrainedArchitecture:
    """All that a network is built of; `category_counts` has the number of vectors of each categorical column."""

    config: Mapping[str, Any]  # content of config.json
    pooling: str  # mean or cls
    dropout: float
    metadata_width: int
    padding_index: int
    separator_index: int | None  # behind it a second text begins; None: the model does not tell two texts apart
    num_numeric: int
    category_counts: tuple[int, ...]
    num_outputs: int  # 1 for a binary target, else one for each class


class PretrainedNetwork(nn.Module):
    """The encoder, under the name that transformers gives it in a model with a head, what is joined, and the head.

    Without metadata the head is a single layer, as that of transformers' models for classification mostly is; with
    metadata there is a hidden layer in which they meet the text.
    """

    hidden: nn.Linear | None

    def __init__(self, sizes: PretrainedArchitecture) -> None:
        super().__init__()
        self.sizes = sizes
        encoder = make_encoder(sizes)
        self.encoder_name: str = encoder.base_model_prefix
        self.add_module(self.encoder_name, encoder)
        width = encoder.config.hidden_size
        self.dropout = nn.Dropout(sizes.dropout)
        self.metadata = MetadataEncoder(sizes)
        joined = width + self.metadata.num_features
        self.hidden = nn.Linear(joined, width) if self.metadata.num_features else None
        self.classifier = nn.Linear(width, sizes.num_outputs)
        for layer in (self.hidden, self.classifier, *self.metadata.embeddings):
            _initialise(layer)

    @property
    def encoder(self) -> Any:
        """The model of transformers."""
        return self.get_submodule(self.encoder_name)

    def forward(self, tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Logits [B, num_outputs] of tokens [B, T], lengths [B], numeric [B, 2K] and categorical [B, C].

        What stands behind a sample's tokens may be any id.
        """
        pooled = self.pool(tokens, lengths)
        if self.hidden is not None:
            joined = torch.cat([pooled, self.metadata(numeric, categorical)], dim=1)
            pooled = functional.gelu(self.hidden(joined))
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits

    def of_one_length(self, tokens: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """The same where all tokens [B, T] are real ones."""
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        return self(tokens, lengths, numeric, categorical)  # type: ignore[no-any-return]

    def pool(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """A vector for each sample, [B, D]."""
        is_real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        tokens = torch.where(is_real, tokens.long(), self.sizes.padding_index)
        inputs = {"input_ids": tokens, "attention_mask": is_real.long()}
        if self.sizes.separator_index is not None:
            inputs["token_type_ids"] = token_types(tokens, is_real, self.sizes.separator_index)
        found = self.encoder(**inputs, return_dict=True)
        if self.sizes.pooling == "mean":
            return mean_over_real_tokens(found.last_hidden_state, is_real)
        pooled: Tensor | None = getattr(found, "pooler_output", None)
        first: Tensor = found.last_hidden_state[:, 0]
        return first if pooled is None else pooled


def make_encoder(sizes: PretrainedArchitecture) -> Any:
    """The encoder with weights drawn from torch's generator, on the CPU, in fp32."""
    config = make_config(sizes.config)
    encoder: Any = AutoModel.from_config(config, dtype=torch.float32, attn_implementation=attention_of(config))
    return without_pooling(encoder) if sizes.pooling == "mean" else encoder


def without_pooling(encoder: Any) -> Any:
    """The encoder without the layer on its first token, which nothing would train."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder


def make_config(content: Mapping[str, Any]) -> PreTrainedConfig:
    """From the content of config.json. Raises `ValueError` for a kind of model that transformers does not have."""
    kind = content["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model of the kind {kind!r}.")
    return CONFIG_MAPPING[kind].from_dict(dict(content))


def attention_of(config: PreTrainedConfig) -> str:
    """Torch's own attention where the model has it: deterministic as we pin it, and fused on a GPU."""
    return "sdpa" if AutoModel._model_mapping[type(config)]._supports_sdpa else "eager"


def token_types(tokens: Tensor, is_real: Tensor, separator_index: int) -> Tensor:
    """[B, T]: 1 behind the first separator, at a real token, else 0."""
    is_separator = (tokens == separator_index).long()
    return ((is_separator.cumsum(dim=1) - is_separator).clamp(max=1)) * is_real


def _initialise(module: nn.Module | None) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STANDARD_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
