"""The weights of a pretrained model, from its folder to files with the names that they have in our network.

Those that are not trained stand in files of their own. transformers itself reads the folder, so it gives old names
their new ones and puts parts together. Invariant: nothing is read but safetensors, and no code of a model's own is run;
and a model whose answer for a text depends on what the text is padded to is refused here, before a run has begun.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from storage.errors import ConfigurationError
from training.export.standalone.holdfast_pretrained import (
    PretrainedNetwork,
    make_config,
    without_pooling,
)
from training.model_configuration import PretrainedConfig
from training.models.frozen import frozen_names
from training.models.pretrained.loading import NOT_LOADED, load
from training.models.pretrained.network import probed
from training.models.pretrained.trained import choose_trained, drawn_names
from training.tensor_files import write_tensors

# The layer on the first token: models that were trained without one have none, and it is drawn at random.
POOLER = "pooler."
TRAINED_STEM, FROZEN_STEM = "pretrained", "frozen"
PROBE_TOKENS, LARGEST_DIFFERENCE = 16, 1e-3


@dataclass(frozen=True)
class FirstWeights:
    """Names of the network's tensors that are in `files`; of these `frozen` have all that are not trained."""

    names: list[str]
    files: list[Path]
    frozen: list[Path]


@torch.no_grad()
def write_first_weights(folder: Path, config: PretrainedConfig, max_tokens: int, out: Path) -> FirstWeights:
    """Write the weights of the model in `folder` into the folder `out`.

    Raises `ConfigurationError` for a model that cannot be trained, or that has fewer positions than `max_tokens`.
    """
    encoder, missing = _load(folder, config)
    _require_finite(config, encoder.state_dict())
    network = PretrainedNetwork(probed(config))
    network.add_module(network.encoder_name, encoder)
    network.eval()
    _require_positions(config, encoder, max_tokens)
    _require_blind_to_padding(config, network)
    choose_trained(network, config)
    prefix, not_trained, drawn = f"{network.encoder_name}.", frozen_names(network), drawn_names(encoder, config)
    tensors = encoder.state_dict()
    found = {f"{prefix}{name}": tensors[name] for name in tensors.keys() - missing - drawn}
    trained = write_tensors({name: t for name, t in found.items() if name not in not_trained}, TRAINED_STEM, out)
    frozen = write_tensors({name: t for name, t in found.items() if name in not_trained}, FROZEN_STEM, out)
    return FirstWeights(sorted(found), trained + frozen, frozen)


def _require_finite(config: PretrainedConfig, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ConfigurationError(
                f"The weights of the model {config.name!r} have values that are not finite, in {name}. Name another "
                "model, or save this one anew."
            )


def _load(folder: Path, config: PretrainedConfig) -> tuple[Any, set[str]]:
    """The encoder, in fp32 and without a layer that is not used; the names of tensors that are not in the folder."""
    try:
        encoder, info = load(AutoModel, folder, make_config(config.pin.read_config()))
    except NOT_LOADED as error:
        raise ConfigurationError(
            f"The model {config.name!r} cannot be loaded: {error} Expected one that AutoModel of transformers loads "
            "without code of its own."
        ) from error
    if config.pooling == "mean":
        encoder = without_pooling(encoder)
    missing = {str(name) for name in info["missing_keys"]}
    lost = sorted({name for name in missing if not name.startswith(POOLER)} | _names(info["mismatched_keys"]))
    if lost:
        raise ConfigurationError(
            f"The weights of the model {config.name!r} are not those of its config.json: {len(lost)} tensors are not "
            f"there or have other sizes, {lost[0]} among them. Give a folder whose files belong together."
        )
    return encoder, missing


def _names(mismatched: Any) -> set[str]:
    return {str(entry if isinstance(entry, str) else entry[0]) for entry in mismatched}


def _require_positions(config: PretrainedConfig, encoder: Any, max_tokens: int) -> None:
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # Some models count positions from behind the index of their padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            if module.num_embeddings - first < max_tokens:
                raise ConfigurationError(
                    f"The model {config.name!r} has {module.num_embeddings - first} positions, and texts may have "
                    f"{max_tokens} tokens. Set data.max_tokens to at most {module.num_embeddings - first}."
                )


def _require_blind_to_padding(config: PretrainedConfig, network: PretrainedNetwork) -> None:
    """Two texts of different lengths in one pass, and the shorter one alone."""
    vocabulary_size = network.encoder.config.vocab_size
    ids = 1 + torch.arange(2 * PROBE_TOKENS).view(2, -1) * 7 % (vocabulary_size - 1)
    tokens = torch.where(ids == config.pin.padding_index, 1 + ids % (vocabulary_size - 1), ids)
    lengths = torch.tensor([PROBE_TOKENS, PROBE_TOKENS // 2])
    none = torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.int64)
    try:
        together = network(tokens, lengths, *none)[1:]
        alone = network(tokens[1:, : PROBE_TOKENS // 2], lengths[1:], none[0][1:], none[1][1:])
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise ConfigurationError(
            f"The model {config.name!r} does not compute texts as an encoder does: {error} Expected one that takes "
            "token ids with an attention mask, and gives a vector for each token."
        ) from error
    if not _is_close(together, alone):
        raise ConfigurationError(
            f"The model {config.name!r} gives a text another answer where it is padded, in spite of the attention "
            "mask. The answer would depend on which texts stand in one microbatch. Name another model."
        )


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= LARGEST_DIFFERENCE * expected.abs().max().clamp(min=1))
