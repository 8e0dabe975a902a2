"""Source of a model: all that training, audits and exports ask of one, our own or another.

Invariant: nothing outside this room names a model or its sizes, and to ask how microbatches are cut loads no torch: the
process that assembles them does not compute, and neither does an audit.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from storage.datasets import DatasetManifest, Target
from training.batches.microbatches import MicrobatchCut
from training.configuration import TrainConfig
from training.model_configuration import ModelConfig, ModuleConfig, PretrainedConfig
from training.models.correspondence import Correspondence, Described
from training.models.encoder.source import EncoderSource
from training.models.module.source import ModuleSource
from training.models.pretrained.source import PretrainedSource

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.models.trial import Trial


class ModelSource(Protocol):
    """A model as its configuration describes it. Two of the same configuration are the same."""

    @property
    def layout(self) -> Literal["flat", "padded"]:
        """flat: the model takes microbatches of several groups, whose tokens stand one after the other, [N].

        padded: only those of one group, [B, T].
        """

    @property
    def attention_length(self) -> int:
        """Length of a sample, in tokens, at which attention costs as much as what looks at each token alone."""

    def require_device(self, device_type: str) -> None:
        """Raise `ConfigurationError` if such a device does not compute the model by kernels that we take."""

    def build(self, dataset: DatasetManifest, num_outputs: int) -> "nn.Module":
        """The model on the CPU, its first weights drawn from torch's generator.

        Its forward pass takes a `Microbatch` on the device that the model is on, and gives logits [B, num_outputs].
        """

    def try_out(self, trial: "Trial") -> None:
        """Raise `ConfigurationError` for a model that cannot be trained exactly. A collective, before the first step.

        Of what is known to be exact nothing is asked. `trial.model` stays as it is.
        """

    def rate_factors(self, model: "nn.Module") -> Mapping[str, float]:
        """What the learning rate is of the configured one, by names of parameters of `model`, where that is not 1."""

    def set_activation_checkpointing(self, model: "nn.Module", is_on: bool) -> None:
        """Whether `model`, built here, recomputes in the backward pass what it would keep. Changes no bit of it."""

    def compiling(self, model: "nn.Module", note: Callable[[str], object]) -> AbstractContextManager[None]:
        """Compile what `model` computes within, for any number of tokens, and nothing afterwards.

        `note` is called once if an input is computed without compiled code.
        """

    def describe(self, dataset: DatasetManifest, num_outputs: int) -> dict[str, Any]:
        """All sizes of the model, as an export states them; JSON-able."""

    def correspond(self, origin: Described, new: Described, names: Sequence[str]) -> Correspondence:
        """Which weights of a model with tensors of these `names` are the first ones of a new one.

        Raises `ConfigurationError` where sizes do not agree.
        """

    def write_export(self, folder: Path, target: Target) -> None:
        """Write what loads the model into an exported folder, which has its weights, sizes and inputs already."""

    def weights_to_export(self, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        """The weights of an exported folder, of those that the model has in training, by their names."""

    def write_adapter(self, weights: Sequence[Path], folder: Path, target: Target) -> dict[str, Any]:
        """Write the adapter alone, in the form of peft, of the model's tensors in the files `weights`.

        How it is loaded, JSON-able. Raises `ConfigurationError` for a model without one.
        """

    def write_onnx(self, folder: Path, target: Target) -> None:
        """Write `model.onnx` into an exported folder, from the weights that are there, which predict `target`."""


def source_of(config: ModelConfig) -> ModelSource:
    """The source of the configured model."""
    if isinstance(config, PretrainedConfig):
        return PretrainedSource(config)
    return ModuleSource(config) if isinstance(config, ModuleConfig) else EncoderSource(config)


def microbatch_cut(config: ModelConfig, train: TrainConfig) -> MicrobatchCut:
    """How batches are cut for the configured model; one group for each microbatch where it takes no flat ones."""
    source = source_of(config)
    return MicrobatchCut(source.attention_length, train.padding_efficiency if source.layout == "flat" else 0.0)
