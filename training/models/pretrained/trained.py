"""What of a pretrained model is trained: everything, what stands above frozen layers, or adapters and the head.

Invariant: a function of the configuration and of the names of tensors, the same where a run begins and in its ranks.
"""

from typing import TYPE_CHECKING

from storage.lazy_imports import lazy_imports
from training.model_configuration import PretrainedConfig
from training.models.pretrained.layers import freeze

if TYPE_CHECKING:
    from torch import nn

    from training.export.standalone.holdfast_pretrained import PretrainedNetwork

# It loads peft, which is an extra.
with lazy_imports():
    import training.models.pretrained.lora as lora


def choose_trained(network: "PretrainedNetwork", config: PretrainedConfig) -> None:
    """Leave untrained what is not to be trained; with `model.lora` the encoder gets its adapters.

    Raises `ConfigurationError`, and `ImportError` without peft.
    """
    if config.lora is None:
        freeze(network, config.frozen_layers)
    else:
        lora.adapt(network, config)


def drawn_names(encoder: "nn.Module", config: PretrainedConfig) -> set[str]:
    """Names of the encoder's tensors whose first values are drawn at random: those of adapters."""
    return set() if config.lora is None else {name for name in encoder.state_dict() if lora.is_of_adapter(name)}
