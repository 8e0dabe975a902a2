"""LoRA: small matrices beside a pretrained encoder's own, which alone are trained, with the head; all of it by peft.

Invariant: which layers have an adapter follows from the configuration and what was pinned; the adapters' first values
are drawn from torch's generator, in the order of the layers, and leave the model's answers as they were.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from storage.errors import ConfigurationError
from training.export.standalone.holdfast_pretrained import PretrainedNetwork, make_encoder
from training.model_configuration import PretrainedConfig
from training.models.pretrained.network import probed

try:
    from peft import LoraConfig, LoraModel
    from peft.tuners.lora import LoraLayer
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
except ImportError as error:
    raise ImportError("model.lora needs the package peft: pip install 'holdfast[lora]'") from error

ADAPTER, PART_OF_ADAPTER = "default", "lora_"
ALL_LINEAR = "all-linear"
# The layer on the first token, which is trained as the head is, and has no adapter.
POOLER, OF_POOLER = "pooler", r"(.*\.)?pooler(\..*)?"


def known_targets(model_type: str) -> str | list[str]:
    """The layers that peft adapts in this kind of model; where it knows of none, all linear ones."""
    found: str | list[str] = KNOWN.get(model_type, ALL_LINEAR)
    return found


def adapt(network: PretrainedNetwork, config: PretrainedConfig) -> None:
    """Give the encoder its adapters. Trained are they and what is not of the encoder, its pooling layer among it.

    Raises `ConfigurationError` where `target_modules` names no layer, or one that is not linear.
    """
    add_adapters(network.encoder, config)
    pooler = getattr(network.encoder, POOLER, None)
    if pooler is not None:
        pooler.requires_grad_(True)


def add_adapters(encoder: Any, config: PretrainedConfig) -> LoraModel:
    """The encoder, which is changed, as a model of peft; of its weights the adapters alone are trained."""
    given = peft_config(config, has_pooler=getattr(encoder, POOLER, None) is not None)
    try:
        adapted = LoraModel(encoder, given, ADAPTER)
    except ValueError as error:  # which peft raises for every target that it cannot adapt
        raise _no_targets(config, str(error)) from error
    for name, module in encoder.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module.get_base_layer(), nn.Linear):
            raise _no_targets(config, f"{name} is a layer of the kind {type(module.get_base_layer()).__name__}.")
    return adapted


def peft_config(config: PretrainedConfig, has_pooler: bool, **more: Any) -> LoraConfig:
    """What is configured, as peft has it."""
    lora = config.lora
    assert lora is not None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        target_modules=lora.target_modules or config.pin.target_modules,
        exclude_modules=OF_POOLER if has_pooler else None,
        **more,
    )


def is_of_adapter(name: str) -> bool:
    """Whether a tensor is of an adapter, by its name."""
    return any(part.startswith(PART_OF_ADAPTER) for part in name.split("."))


def merged(tensors: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """The tensors of the model without adapters that gives the answers of the one with them, up to rounding."""
    encoder = make_encoder(probed(config))
    prefix = f"{encoder.base_model_prefix}."
    adapted = add_adapters(encoder, config)
    of_encoder = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    encoder.load_state_dict(of_encoder)
    plain: nn.Module = adapted.merge_and_unload(safe_merge=True)
    others = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    return others | {f"{prefix}{name}": tensor.detach() for name, tensor in plain.state_dict().items()}


def _no_targets(config: PretrainedConfig, problem: str) -> ConfigurationError:
    assert config.lora is not None
    targets = config.lora.target_modules or config.pin.target_modules
    return ConfigurationError(
        f"model.lora.target_modules is {targets!r}, which cannot be adapted in the model {config.name!r}: {problem} "
        f"Expected the last parts of the names of linear layers of its encoder, as ['query', 'value'], or "
        f"{ALL_LINEAR!r}."
    )
