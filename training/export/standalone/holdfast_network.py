"""The classifier's network: a transformer encoder over the tokens, joined with the metadata before the head.

Pre-norm blocks (Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020), learned positions,
mean over the real tokens. Invariant: padding never reaches the result, so a sample's logits do not depend on what it
was padded to, up to rounding; and this file imports torch alone, since an exported model has a copy of it.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INITIAL_STANDARD_DEVIATION = 0.02
# [B, 1, 1, T], true at real tokens; None where all are. Where several groups of samples stand one after the other, such
# a tensor for each group.
Mask = Tensor | tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Architecture:
    """All sizes of a network; `category_counts` has the number of vectors of each categorical column."""

    width: int
    layers: int
    heads: int
    feedforward: int
    dropout: float
    metadata_width: int
    vocabulary_size: int
    num_positions: int
    num_numeric: int
    category_counts: tuple[int, ...]
    num_outputs: int  # 1 for a binary target, else one for each class


class SelfAttention(nn.Module):
    """Multi-head attention of every token over the real tokens of its sample."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.dropout = sizes.dropout
        self.project_in = nn.Linear(sizes.width, 3 * sizes.width)
        self.project_out = nn.Linear(sizes.width, sizes.width)

    def mix(self, projected: Tensor, mask: Mask) -> Tensor:
        """What `project_in` gave, [B, T, 3 D] or flat [N, 3 D], mixed within each sample: [B, T, D] or [N, D]."""
        if not isinstance(mask, tuple):
            return self._mix_group(projected, mask)
        parts = torch.split(projected, [group.shape[0] * group.shape[-1] for group in mask])
        mixed = [
            self._mix_group(part.view(group.shape[0], group.shape[-1], -1), group).flatten(0, 1)
            for part, group in zip(parts, mask, strict=True)
        ]
        return torch.cat(mixed)

    def _mix_group(self, projected: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
        heads = projected.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class EncoderBlock(nn.Module):
    """Attention and a feed-forward layer, each on a normalised copy that is added back."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.attention = SelfAttention(sizes)
        self.feedforward_norm = nn.LayerNorm(sizes.width)
        self.feedforward = nn.Sequential(
            nn.Linear(sizes.width, sizes.feedforward),
            nn.GELU(),
            nn.Dropout(sizes.dropout),
            nn.Linear(sizes.feedforward, sizes.width),
        )
        self.dropout = nn.Dropout(sizes.dropout)

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


class MetadataSizes(Protocol):
    """Those sizes of a network that are about metadata."""

    @property
    def metadata_width(self) -> int: ...

    @property
    def num_numeric(self) -> int: ...

    @property
    def category_counts(self) -> tuple[int, ...]: ...


class MetadataEncoder(nn.Module):
    """Numeric columns with their is-missing flags, and one embedding per categorical column; M features."""

    def __init__(self, sizes: MetadataSizes) -> None:
        super().__init__()
        width = sizes.metadata_width
        self.embeddings = nn.ModuleList(nn.Embedding(count, width) for count in sizes.category_counts)
        self.num_features = 2 * sizes.num_numeric + width * len(sizes.category_counts)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        embedded = [embedding(categorical[:, column]) for column, embedding in enumerate(self.embeddings)]
        return torch.cat([numeric, *embedded], dim=1)


class Network(nn.Module):
    """The layers, and the parts of a forward pass; how samples are laid out is the matter of its subclasses."""

    def __init__(self, sizes: Architecture, activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        self.activation_checkpointing = activation_checkpointing
        self.token_embedding = nn.Embedding(sizes.vocabulary_size, sizes.width)
        self.position_embedding = nn.Embedding(sizes.num_positions, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(EncoderBlock(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.metadata = MetadataEncoder(sizes)
        self.hidden = nn.Linear(sizes.width + self.metadata.num_features, sizes.width)
        self.head = nn.Linear(sizes.width, sizes.num_outputs)
        self.apply(_initialise)

    def encode(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        """A vector for each token."""
        hidden = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                hidden = checkpoint(block, hidden, mask, use_reentrant=False)
            else:
                hidden = block(hidden, mask)
        result: Tensor = self.norm(hidden)
        return result

    def pool(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """A vector for each sample, [B, D], of tokens [B, T] padded with any number behind `lengths` [B] real ones."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        is_real = positions < lengths[:, None]
        return mean_over_real_tokens(self.encode(tokens, positions, mask_of(is_real, positions)), is_real)

    def classify(self, pooled: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Logits [B, num_outputs], from a vector for each sample and its metadata."""
        joined = torch.cat([pooled, self.metadata(numeric, categorical)], dim=1)
        logits: Tensor = self.head(self.dropout(functional.gelu(self.hidden(joined))))
        return logits


class PaddedNetwork(Network):
    """The network for samples that are padded to one length."""

    def forward(self, tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Logits [B, num_outputs] of tokens [B, T], lengths [B], numeric [B, 2K] and categorical [B, C]."""
        return self.classify(self.pool(tokens, lengths), numeric, categorical)

    def of_one_length(self, tokens: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """The same where all tokens [B, T] are real ones: attention without a mask is faster."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.classify(self.encode(tokens, positions, None).mean(dim=1), numeric, categorical)


def mask_of(is_real: Tensor, positions: Tensor) -> Tensor:
    """What attention may look at, from where the real tokens are [B, T]."""
    # A text without any token looks at its padding rather than at nothing: softmax over nothing is NaN.
    return (is_real | (positions == 0))[:, None, None, :]


def mean_over_real_tokens(hidden: Tensor, is_real: Tensor) -> Tensor:
    """[B, D], from a vector for each token [B, T, D]."""
    weights = is_real.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STANDARD_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
