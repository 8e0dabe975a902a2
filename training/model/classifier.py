"""The classifier: a transformer encoder over the tokens, joined with the metadata before the head.

Pre-norm blocks (Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020), learned positions,
mean over the real tokens. Invariant: padding never reaches the result, so a sample's logits do not depend on the leaf
it was padded in, up to rounding. Attention sees the groups of a leaf one after the other, all other layers see the
leaf as a whole: so groups cost no second pass over the weights.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from storage.datasets import FIRST_VOCABULARY_INDEX, DatasetManifest
from training.batches.tensors import Leaf
from training.configuration import ModelConfig
from training.data.samples import padded_length

INITIAL_STANDARD_DEVIATION = 0.02
# Of a leaf that is not flat [B, 1, 1, T], true at real tokens; of a flat one such a tensor for each group.
Mask = Tensor | tuple[Tensor, ...]


class SelfAttention(nn.Module):
    """Multi-head attention of every token over the real tokens of its sample."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def mix(self, projected: Tensor, mask: Mask) -> Tensor:
        """What `project_in` gave, [B, T, 3 D] or flat [N, 3 D], mixed within each sample: [B, T, D] or [N, D]."""
        if isinstance(mask, Tensor):
            return self._mix_group(projected, mask)
        parts = torch.split(projected, [group.shape[0] * group.shape[-1] for group in mask])
        mixed = [
            self._mix_group(part.view(group.shape[0], group.shape[-1], -1), group).flatten(0, 1)
            for part, group in zip(parts, mask, strict=True)
        ]
        return torch.cat(mixed)

    def _mix_group(self, projected: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
        heads = projected.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2).reshape(batch, length, width)


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

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        return self.after_mixing(hidden, self.attention.mix(self.before_mixing(hidden), mask))

    def before_mixing(self, hidden: Tensor) -> Tensor:
        """What attention mixes: looks at each token alone, as all layers but `SelfAttention.mix`."""
        projected: Tensor = self.attention.project_in(self.attention_norm(hidden))
        return projected

    def after_mixing(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The block's result, from what it was given and what attention has mixed."""
        hidden = hidden + self.dropout(self.attention.project_out(mixed))
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
        pooled = self._pool_flat(leaf) if leaf.is_flat else self._pool(leaf)
        joined = torch.cat([pooled, self.metadata(leaf.numeric, leaf.categorical)], dim=1)
        logits: Tensor = self.head(self.dropout(functional.gelu(self.hidden(joined))))
        return logits

    def _pool(self, leaf: Leaf) -> Tensor:
        """A vector for each sample, [B, D], of a leaf that is not flat."""
        positions = torch.arange(leaf.tokens.shape[1], device=leaf.tokens.device)
        is_real = positions < leaf.lengths[:, None]
        hidden = self._encode(leaf.tokens, positions, _mask(is_real, positions))
        return _mean_over_real_tokens(hidden, is_real)

    def _pool_flat(self, leaf: Leaf) -> Tensor:
        """The same of a flat leaf, whose groups stand one after the other."""
        counts, sizes = [group.num_samples for group in leaf.groups], [group.num_tokens for group in leaf.groups]
        positions = [torch.arange(group.length, device=leaf.tokens.device) for group in leaf.groups]
        are_real = [
            p < lengths[:, None] for p, lengths in zip(positions, torch.split(leaf.lengths, counts), strict=True)
        ]
        masks = tuple(_mask(is_real, p) for is_real, p in zip(are_real, positions, strict=True))
        repeated = torch.cat([p.repeat(count) for p, count in zip(positions, counts, strict=True)])
        parts = torch.split(self._encode(leaf.tokens, repeated, masks), sizes)
        pooled = [
            _mean_over_real_tokens(part.view(*is_real.shape, -1), is_real)
            for part, is_real in zip(parts, are_real, strict=True)
        ]
        return torch.cat(pooled)

    def _encode(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        hidden = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                hidden = checkpoint(block, hidden, mask, use_reentrant=False)
            else:
                hidden = block(hidden, mask)
        result: Tensor = self.norm(hidden)
        return result


def num_outputs(dataset: DatasetManifest) -> int:
    """One logit for a binary target, else one per class."""
    return 1 if dataset.target.kind == "binary" else len(dataset.target.classes)


def _mask(is_real: Tensor, positions: Tensor) -> Tensor:
    # A text without any token looks at its padding rather than at nothing: softmax over nothing is NaN.
    return (is_real | (positions == 0))[:, None, None, :]


def _mean_over_real_tokens(hidden: Tensor, is_real: Tensor) -> Tensor:
    weights = is_real.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STANDARD_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
