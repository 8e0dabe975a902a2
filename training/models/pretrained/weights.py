"""The weights of a pretrained model, from its folder to one file with the names that they have in our network.

transformers itself reads the folder, so it gives old names their new ones and puts parts together. Invariant: nothing
is read but safetensors, and no code of a model's own is run; and a model whose answer for a text depends on what the
text is padded to is refused here, before a run has begun.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModel

from storage.errors import ConfigurationError
from training.export.standalone.holdfast_pretrained import (
    PretrainedArchitecture,
    PretrainedNetwork,
    make_config,
    without_pooling,
)
from training.model_configuration import PretrainedConfig
from training.models.pretrained.loading import NOT_LOADED, load

# The layer on the first token: models that were trained without one have none, and it is drawn at random.
POOLER = "pooler."
PROBE_TOKENS, LARGEST_DIFFERENCE = 16, 1e-3


@torch.no_grad()
def write_first_weights(folder: Path, config: PretrainedConfig, max_tokens: int, path: Path) -> list[str]:
    """Write the weights in `folder` to `path`; their names, those of the network's tensors.

    Raises `ConfigurationError` for a model that cannot be trained, or that has fewer positions than `max_tokens`.
    """
    encoder, missing = _load(folder, config)
    network = PretrainedNetwork(_probed(config))
    network.add_module(network.encoder_name, encoder)
    network.eval()
    _require_positions(config, encoder, max_tokens)
    _require_blind_to_padding(config, network)
    prefix = f"{network.encoder_name}."
    found = {f"{prefix}{name}": tensor for name, tensor in encoder.state_dict().items() if name not in missing}
    # Each with memory of its own, which tensors that a model shares do not have.
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in found.items()}, path)
    return sorted(found)


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


def _probed(config: PretrainedConfig) -> PretrainedArchitecture:
    """The network without metadata, with two outputs."""
    pin = config.pin
    return PretrainedArchitecture(
        pin.read_config(), config.pooling, config.dropout, config.metadata_width,
        pin.padding_index, pin.separator_index, 0, (), 2,
    )  # fmt: skip


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
