"""The classifier: a transformer encoder over the tokens, joined with the metadata before the head.

Pre-norm blocks (Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020), learned positions,
mean over the real tokens. Invariant: padding never reaches the result, so a sample's logits do not depend on the leaf
it was padded in, up to rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from storage.datasets import FIRST_VOCABULARY_INDEX, DatasetManifest
from training.configuration import ModelConfig
from training.data.batches import Leaf
from training.data.leaves import padded_length

INITIAL_STANDARD_DEVIATION = 0.02


class SelfAttention(nn.Module):
    """Multi-head attention of every token over the real tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """`hidden` [B, T, D], `mask` [B, 1, 1, T] true at real tokens; returns [B, T, D]."""
        batch, length, width = hidden.shape
        heads = self.project_in(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        result: Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class EncoderBlock(nn.Module):
    """Attention and a feed-forward layer, each on a normalised copy that is added back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config)
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.feedforward = nn.Sequential(
            nn.Linear(config.width, config.feedforward),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), mask))
        result: Tensor = hidden + self.dropout(self.feedforward(self.feedforward_norm(hidden)))
        return result


class MetadataEncoder(nn.Module):
    """Numeric columns with their is-missing flags, and one embedding per categorical column; M features."""

    def __init__(self, num_numeric: int, category_counts: list[int], width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, width) for count in category_counts)
        self.num_features = 2 * num_numeric + width * len(category_counts)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        embedded = [embedding(categorical[:, column]) for column, embedding in enumerate(self.embeddings)]
        return torch.cat([numeric, *embedded], dim=1)


class Classifier(nn.Module):
    """From a leaf to logits [B, num_outputs]; one output for a binary target, one per class otherwise."""

    def __init__(self, config: ModelConfig, dataset: DatasetManifest, activation_checkpointing: bool) -> None:
        super().__init__()
        num_positions = padded_length(dataset.max_tokens)
        category_counts = [len(column.vocabulary) + FIRST_VOCABULARY_INDEX for column in dataset.categorical]
        self.activation_checkpointing = activation_checkpointing
        self.token_embedding = nn.Embedding(dataset.vocabulary_size, config.width)
        self.position_embedding = nn.Embedding(num_positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.metadata = MetadataEncoder(len(dataset.numeric), category_counts, config.metadata_width)
        self.hidden = nn.Linear(config.width + self.metadata.num_features, config.width)
        self.head = nn.Linear(config.width, num_outputs(dataset))
        self.apply(_initialise)

    def forward(self, leaf: Leaf) -> Tensor:
        positions = torch.arange(leaf.tokens.shape[1], device=leaf.tokens.device)
        is_real = positions < leaf.lengths[:, None]
        # A text without any token looks at its padding rather than at nothing: softmax over nothing is NaN.
        mask = (is_real | (positions == 0))[:, None, None, :]
        hidden = self.dropout(self.token_embedding(leaf.tokens) + self.position_embedding(positions))
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                hidden = checkpoint(block, hidden, mask, use_reentrant=False)
            else:
                hidden = block(hidden, mask)
        pooled = _mean_over_real_tokens(self.norm(hidden), is_real)
        joined = torch.cat([pooled, self.metadata(leaf.numeric, leaf.categorical)], dim=1)
        logits: Tensor = self.head(self.dropout(functional.gelu(self.hidden(joined))))
        return logits


def num_outputs(dataset: DatasetManifest) -> int:
    """One logit for a binary target, else one per class."""
    return 1 if dataset.target.kind == "binary" else len(dataset.target.classes)


def _mean_over_real_tokens(hidden: Tensor, is_real: Tensor) -> Tensor:
    weights = is_real.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STANDARD_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
