"""A module of the user's own as a source of models.

Invariant: nothing is imported of the user's before a model is built or tried out; what is asked before that is a
function of the configuration.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.datasets import DatasetManifest, Target
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from training.model_configuration import ModuleConfig
from training.models.correspondence import Correspondence, Described

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.models.trial import Trial

with lazy_imports():
    from training.models.module import exported, network, trying  # and torch

# Of a module it is not known where attention costs as much as all else, or whether it has any: microbatches are cut by
# the numbers of their tokens, mostly.
ATTENTION_LENGTH = 1024
CHECKPOINTING = "set_activation_checkpointing"


class ModuleSource:
    """The module that the configured function builds."""

    layout: Literal["flat", "padded"] = "padded"

    def __init__(self, config: ModuleConfig) -> None:
        self._config = config

    @property
    def attention_length(self) -> int:
        return ATTENTION_LENGTH

    def require_device(self, device_type: str) -> None:
        """Every device will do, as far as is known."""

    def build(self, dataset: DatasetManifest, num_outputs: int) -> "nn.Module":
        return network.build_classifier(self._config, network.inputs_of(dataset, num_outputs))

    def try_out(self, trial: "Trial") -> None:
        """Raises `ConfigurationError` for a module that would not give the same weights however it is interrupted."""
        trying.try_out(self._config, trial)

    def rate_factors(self, model: "nn.Module") -> Mapping[str, float]:
        """All layers learn at one rate."""
        return {}

    def set_activation_checkpointing(self, model: "nn.Module", is_on: bool) -> None:
        """By the module's own method. Raises `ConfigurationError` if it has none."""
        own: Any = getattr(model, CHECKPOINTING, None)
        if own is not None:
            own(is_on)
        elif is_on:
            raise ConfigurationError(
                f"{self._config.reference.name} builds a module that cannot recompute its layers: expected a method "
                f"{CHECKPOINTING}(is_on). Add one, or take train.activation_checkpointing out."
            )

    def compiling(self, model: "nn.Module", note: Callable[[str], object]) -> AbstractContextManager[None]:
        """Raises `ConfigurationError`: `RunConfig` refuses it before a run begins."""
        raise ConfigurationError("train.compile does not go with a module of your own. Take it out.")

    def describe(self, dataset: DatasetManifest, num_outputs: int) -> dict[str, Any]:
        """What is needed beside the weights to build it again, with the code."""
        inputs = asdict(network.inputs_of(dataset, num_outputs))
        code = {"function": self._config.pin.function, "files": self._config.pin.files}
        return {"kind": self._config.kind, **code, "options": self._config.options, "inputs": inputs}

    def correspond(self, origin: Described, new: Described, names: Sequence[str]) -> Correspondence:
        """Raises `ConfigurationError`: `RunConfig` refuses it before a run begins."""
        raise ConfigurationError("train.start_from does not go with a module of your own. Take it out.")

    def write_export(self, folder: Path, target: Target) -> None:
        """The loading, and the user's own code as it was when the run began, which nothing here imports from there."""
        exported.write_export(folder, self._config)

    def weights_to_export(self, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        return tensors

    def write_adapter(self, weights: Sequence[Path], folder: Path, target: Target) -> dict[str, Any]:
        raise ConfigurationError("--adapter goes with model.lora alone, and this run has none. Leave it out.")

    def write_onnx(self, folder: Path, target: Target) -> None:
        """Raises `ConfigurationError` for a module that torch's exporter does not follow."""
        exported.write_onnx(folder, self._config, target)
