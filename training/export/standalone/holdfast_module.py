"""A module of the user's own: what it is built for, and what its forward pass is given, by the names that that has.

Invariant: a sample is padded to a multiple of 8 tokens, in training and in an exported model alike. This file imports
torch alone, since an exported model has a copy of it.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Of what a forward pass may take, by the names of its parameters.
ARGUMENTS = {
    "tokens": "int64 [B, T], token ids, 0 behind a sample's last one",
    "mask": "bool [B, T], true at a sample's tokens",
    "lengths": "int64 [B], how many tokens a sample has",
    "numeric": "float32 [B, 2 K], K scaled values, then K flags that are 1 where the value was missing",
    "categorical": "int64 [B, C], indices of categories",
}
LENGTH_MULTIPLE = 8
Factory = Callable[..., nn.Module]


@dataclass(frozen=True)
class ModelInputs:
    """What a module is built for: the sizes of what it takes and gives, as they follow from the data set.

    `numeric` has the names of K columns, and `categorical` those of C columns, each with the number of its indices;
    `num_outputs` is 1 for a binary target, else the number of `classes`, and `max_tokens` the largest T.
    """

    vocabulary_size: int
    max_tokens: int
    num_outputs: int
    classes: tuple[str, ...]
    numeric: tuple[str, ...]
    categorical: Mapping[str, int]

    @property
    def num_numeric(self) -> int:
        return len(self.numeric)

    @property
    def category_counts(self) -> tuple[int, ...]:
        return tuple(self.categorical.values())


class OwnNetwork(nn.Module):
    """A module as an exported model is called. Its logits [B, num_outputs] are those of the module `own`."""

    def __init__(self, own: nn.Module, sizes: ModelInputs) -> None:
        super().__init__()
        self.own = own
        self.sizes = sizes
        self._names = argument_names(own)

    def forward(self, tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Of tokens [B, T], lengths [B], numeric [B, 2 K] and categorical [B, C]."""
        tokens = functional.pad(tokens, (0, -tokens.shape[1] % LENGTH_MULTIPLE))
        result: Tensor = self.own(*arguments_of(self._names, tokens, lengths, numeric, categorical))
        return result

    def of_one_length(self, tokens: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
        """The same where all tokens [B, T] are real ones."""
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        return self(tokens, lengths, numeric, categorical)  # type: ignore[no-any-return]


def make_own_network(described: Mapping[str, Any], build: Factory) -> OwnNetwork:
    """The network that model.json describes, with a module that `build` makes anew."""
    inputs = described["inputs"]
    sizes = ModelInputs(**{**inputs, **{name: tuple(inputs[name]) for name in ("classes", "numeric")}})
    return OwnNetwork(build(sizes, **described["options"]), sizes)


def argument_names(module: nn.Module) -> list[str]:
    """What the module's forward pass takes, in its order. Raises `TypeError` for what nothing here is called."""
    parameters = inspect.signature(module.forward).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p.name for p in needed if p.name not in ARGUMENTS or p.kind is p.KEYWORD_ONLY]
    found = [p.name for p in parameters if p.name in ARGUMENTS]
    if unknown or not found or [p.name for p in list(parameters)[: len(found)]] != found:
        known = "; ".join(f"{name}: {what}" for name, what in ARGUMENTS.items())
        raise TypeError(
            f"the forward pass of {type(module).__name__} takes ({', '.join(map(str, parameters))}), expected first, "
            f"in any order, parameters among these, and no others without a default: {known}."
        )
    return found


def arguments_of(
    names: list[str], tokens: Tensor, lengths: Tensor, numeric: Tensor, categorical: Tensor
) -> list[Tensor]:
    """The arguments of these names, of a batch that is padded to a multiple of 8 tokens."""
    has = {"tokens": tokens.long(), "lengths": lengths, "numeric": numeric, "categorical": categorical}
    if "mask" in names:
        has["mask"] = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    return [has[name] for name in names]
