"""The layers of a pretrained model, by the names of its tensors: which are not trained, and at what rate others are.

Invariant: a function of the names alone. Layer 0 are the vectors of tokens and positions, the encoder's blocks count
from 1; what stands behind the last block, the head among it, is one layer above it.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# The number of a block within a list of them, whatever the model calls the list.
BLOCK = re.compile(r"\.(?:layers?|blocks?|h|albert_layer_groups)\.(\d+)\.")
EMBEDDINGS = "embeddings"


def layers_of(model: "nn.Module") -> dict[str, int]:
    """The layer of each parameter, by its name in a `PretrainedNetwork`."""
    prefix = f"{model.encoder_name}."
    names = [name for name, _ in model.named_parameters()]
    blocks = {name: int(found[1]) + 1 for name in names if name.startswith(prefix) and (found := BLOCK.search(name))}
    top = max(blocks.values(), default=0) + 1
    embeddings = {name: 0 for name in names if name.startswith(prefix) and EMBEDDINGS in name}
    return {name: blocks.get(name, embeddings.get(name, top)) for name in names}


def rate_factors(model: "nn.Module", layer_decay: float) -> dict[str, float]:
    """Of each parameter what its learning rate is of the head's, where that is not 1."""
    layers = layers_of(model)
    top = max(layers.values())
    return {name: layer_decay ** (top - layer) for name, layer in layers.items() if layer_decay < 1 and layer < top}


def freeze(model: "nn.Module", frozen_layers: int | None) -> None:
    """Have so many of the encoder's blocks, and the vectors of tokens and positions, not trained; None: none."""
    if frozen_layers is None:
        return
    layers = layers_of(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layers[name] > frozen_layers)
