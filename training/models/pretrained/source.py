"""A pretrained model as a source of models.

Invariant: a function of the configuration alone, what was pinned when the run began included: neither the folder that
the model came from nor a hub is looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.datasets import DatasetManifest, Target
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from training.model_configuration import PretrainedConfig
from training.models.correspondence import Correspondence, Described
from training.models.pretrained import layers
from training.models.pretrained.trained import choose_trained

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.models.trial import Trial

with lazy_imports():
    from training.models.pretrained import adapter, exported, lora, network  # and torch, transformers, peft

# What the sizes are called in a config.json, the usual name first.
WIDTH_NAMES = ("hidden_size", "dim", "d_model")
FEEDFORWARD_NAMES = ("intermediate_size", "hidden_dim", "ffn_dim")
HEADS_NAMES = ("num_attention_heads", "n_heads")
LAYERS_NAMES = ("num_hidden_layers", "n_layers", "num_layers")
# Sizes of attention heads for which torch has fused kernels on a GPU, in each of our precisions.
HEAD_SIZE_MULTIPLE = 8


class PretrainedSource:
    """The model that was pinned, with a head for this run's target."""

    layout: Literal["flat", "padded"] = "padded"

    def __init__(self, config: PretrainedConfig) -> None:
        self._config = config

    @property
    def attention_length(self) -> int:
        """As of our own encoder: where attention costs as much as the dense layers, 2 width + feedforward."""
        content = self._config.pin.read_config()
        width = find_size(content, WIDTH_NAMES)
        return 2 * width + (find_size(content, FEEDFORWARD_NAMES) or 4 * width)

    def require_device(self, device_type: str) -> None:
        """Raises `ConfigurationError` for a head size that fused attention does not take on a GPU."""
        content = self._config.pin.read_config()
        width, heads = find_size(content, WIDTH_NAMES), find_size(content, HEADS_NAMES)
        if device_type == "cuda" and heads and width // heads % HEAD_SIZE_MULTIPLE:
            raise ConfigurationError(
                f"The model {self._config.name!r} has attention heads of size {width // heads}, expected a multiple of "
                f"{HEAD_SIZE_MULTIPLE} on a GPU: torch has no fused attention for other sizes. Name another model, or "
                "train on a CPU, with --set train.device=cpu"
            )

    def build(self, dataset: DatasetManifest, num_outputs: int) -> "nn.Module":
        try:
            model = network.PretrainedClassifier(network.architecture_of(self._config, dataset, num_outputs))
            choose_trained(model, self._config)
        except ImportError as error:
            raise ConfigurationError(f"{error}. It is not installed on this machine.") from error
        return model

    def try_out(self, trial: "Trial") -> None:
        """Nothing: what it computes is a function of weights, microbatch and seed, as tests of ours show."""

    def rate_factors(self, model: "nn.Module") -> Mapping[str, float]:
        """A layer's is `layer_decay` times that of the layer above it; that of the head is 1."""
        return layers.rate_factors(model, self._config.layer_decay)

    def set_activation_checkpointing(self, model: "nn.Module", is_on: bool) -> None:
        """Raises `ConfigurationError` if the model cannot recompute its layers."""
        assert isinstance(model, network.PretrainedClassifier)
        if not is_on:
            if model.encoder.is_activation_checkpointing:
                model.encoder.activation_checkpointing_disable()
        elif model.encoder.supports_gradient_checkpointing:
            model.encoder.activation_checkpointing_enable({"use_reentrant": False})
        else:
            raise ConfigurationError(
                f"The model {self._config.name!r} cannot recompute its layers. Take train.activation_checkpointing out."
            )

    def compiling(self, model: "nn.Module", note: Callable[[str], object]) -> AbstractContextManager[None]:
        """Raises `ConfigurationError`: `RunConfig` refuses it before a run begins."""
        raise ConfigurationError("train.compile does not go with a pretrained model. Take it out.")

    def describe(self, dataset: DatasetManifest, num_outputs: int) -> dict[str, Any]:
        return {"kind": self._config.kind, **asdict(network.architecture_of(self._config, dataset, num_outputs))}

    def correspond(self, origin: Described, new: Described, names: Sequence[str]) -> Correspondence:
        """Raises `ConfigurationError`: `RunConfig` refuses it before a run begins."""
        raise ConfigurationError("train.start_from does not go with a pretrained model. Take it out.")

    def write_export(self, folder: Path, target: Target) -> None:
        """The network, its inputs and its loading, and what transformers loads the model by."""
        exported.write_export(folder, self._config, target)

    def weights_to_export(self, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        """With the adapters merged into the encoder's own weights."""
        return tensors if self._config.lora is None else lora.merged(tensors, self._config)

    def write_adapter(self, weights: Sequence[Path], folder: Path, target: Target) -> dict[str, Any]:
        if self._config.lora is None:
            raise ConfigurationError("--adapter goes with model.lora alone, and this run has none. Leave it out.")
        return adapter.write_adapter(weights, folder, self._config, target)

    def write_onnx(self, folder: Path, target: Target) -> None:
        exported.write_onnx(folder, target)


def find_size(content: dict[str, Any], names: Sequence[str]) -> int:
    """A size in the content of config.json, by the first of these names that is there; 0 if none is."""
    return next((int(content[name]) for name in names if isinstance(content.get(name), int)), 0)
