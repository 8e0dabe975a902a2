"""Our own encoder as a source of models.

Invariant: a function of the configuration alone. What needs torch is imported on first use: most processes that
make a source ask for its layout and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.datasets import DatasetManifest, Target
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from training.model_configuration import EncoderConfig
from training.models.correspondence import Correspondence, Described
from training.models.encoder.correspondence import correspond

with lazy_imports():
    from training.export import standalone_code
    from training.models.encoder import exported, network  # and torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.models.trial import Trial

# Sizes of attention heads for which torch has fused kernels on a GPU, in each of our precisions.
HEAD_SIZE_MULTIPLE = 8


class EncoderSource:
    """The encoder with these sizes."""

    layout: Literal["flat", "padded"] = "flat"

    def __init__(self, config: EncoderConfig) -> None:
        self._config = config

    @property
    def attention_length(self) -> int:
        """Per token and layer it multiplies 4 width² + 2 width feedforward times in its dense layers.

        And 2 width length times in attention: the two are equal at a length of 2 width + feedforward.
        """
        return 2 * self._config.width + self._config.feedforward

    def require_device(self, device_type: str) -> None:
        """Raises `ConfigurationError` for a head size that fused attention does not take on a GPU."""
        head_size = self._config.width // self._config.heads
        if device_type == "cuda" and head_size % HEAD_SIZE_MULTIPLE:
            raise ConfigurationError(
                f"The size of an attention head, width / heads, must be a multiple of {HEAD_SIZE_MULTIPLE} on a GPU: "
                f"it is {head_size} ({self._config.describe('width', 'heads')}). torch has no fused attention for "
                "other sizes. For a new run set another model.heads or model.width; a run that was begun goes on on a "
                "CPU, with --set train.device=cpu"
            )

    def build(self, dataset: DatasetManifest, num_outputs: int) -> "nn.Module":
        return network.Classifier(network.architecture_of(self._config, dataset, num_outputs))

    def try_out(self, trial: "Trial") -> None:
        """Nothing: what it computes is a function of weights, microbatch and seed, as tests of ours show."""

    def rate_factors(self, model: "nn.Module") -> Mapping[str, float]:
        """All layers learn at one rate."""
        return {}

    def set_activation_checkpointing(self, model: "nn.Module", is_on: bool) -> None:
        """Set whether blocks are recomputed in backward, one by one."""
        assert isinstance(model, network.Classifier)
        model.activation_checkpointing = is_on

    def compiling(self, model: "nn.Module", note: Callable[[str], object]) -> AbstractContextManager[None]:
        assert isinstance(model, network.Classifier)
        return network.compiling_blocks(model.blocks, note)

    def describe(self, dataset: DatasetManifest, num_outputs: int) -> dict[str, Any]:
        return {"kind": self._config.kind, **asdict(network.architecture_of(self._config, dataset, num_outputs))}

    def correspond(self, origin: Described, new: Described, names: Sequence[str]) -> Correspondence:
        return correspond(origin, new, names)

    def write_export(self, folder: Path, target: Target) -> None:
        """The network, its inputs and its loading, in files that need torch and safetensors alone."""
        standalone_code.write_code(folder)

    def weights_to_export(self, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        return tensors

    def write_adapter(self, weights: Sequence[Path], folder: Path, target: Target) -> dict[str, Any]:
        raise ConfigurationError("--adapter goes with model.lora alone, and this run has none. Leave it out.")

    def write_onnx(self, folder: Path, target: Target) -> None:
        exported.write_encoder(folder, target)
