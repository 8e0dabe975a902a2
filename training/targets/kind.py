"""The protocol of a kind of target: from logits to losses, predictions, scores and what a calibration is made of.

Invariant: a sample's loss, prediction and claims depend on its own logits and label alone, so they are the same in
whatever microbatch and on whatever rank they are computed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Claims(NamedTuple):
    """The probability that is claimed of each decision, in float64, and whether it came true, bool; [M] each."""

    claimed: Tensor
    came_true: Tensor


class TargetKind(Protocol):
    """What training needs to know of a target beyond its classes.

    `logits` are [N, num_outputs] and `labels` int64 [N, *label_shape] throughout, unless a method documents otherwise.
    """

    @property
    def classes(self) -> Sequence[str]:
        """The classes, in the order of the labels' indices."""

    @property
    def num_outputs(self) -> int:
        """Logits that the network has for a sample."""

    @property
    def output_classes(self) -> Sequence[str]:
        """The class that each of these logits is for."""

    @property
    def problem_type(self) -> str | None:
        """What transformers calls it, `problem_type` of a model's configuration; None where it has no name for it."""

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one sample's label: () where it is the index of a class."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, in the order of `storage.target_kinds`; the first is the headline by default."""

    def sample_losses(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Unweighted loss of each sample in fp32, [N]."""

    def class_weights(self, class_counts: Sequence[int], num_rows: int, exponent: float) -> Tensor:
        """Weights for rare classes in fp32, in whatever shape `weighted_losses` takes: 1 in the mean over the samples.

        Of the inverse frequency to the power `exponent`, from the rows of each class among `num_rows` rows.
        """

    def weighted_losses(
        self, logits: Tensor, labels: Tensor, class_weights: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        """Loss of each sample in fp32, [N], with the weights that `class_weights` gave."""

    def predict(self, logits: Tensor) -> Tensor:
        """What is predicted of each sample, in the form that labels have."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probability of each class, [N, classes], in the type of the logits."""

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """All metrics but the loss, from the least informative on; left out is what is not defined for these samples.

        On the CPU, without a NaN.
        """

    def tables(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        """The tables and curves behind the scores, JSON-able: those of `training.metrics.scores.NO_TABLES` it has."""

    def decisions(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The samples as M decisions between several options each, of which one is right.

        Logits [M, options] in float64, whose softmax are the options' probabilities, and the right option of each, [M].
        """

    def claims(self, probabilities: Tensor, right: Tensor) -> Claims:
        """What is claimed of decisions, from the probabilities of their options [M, options] and the right ones."""

    def thresholds(self, fitted: Claims, measured: Claims) -> dict[str, Any] | None:
        """Probability from which a claim counts as true: chosen on `fitted`, measured on both, JSON-able.

        None where the most probable class is predicted, whatever its probability.
        """
