"""What can be configured about validations and evaluations: when, on how many samples, and what is computed.

Invariant: what is asked for beyond the usual changes none of the usual numbers, and is recorded only where it is set.
"""

import math
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from storage.target_kinds import EXTRA_METRICS
from training.configuration import BY_ROWS, ConfigModel

# A run whose steps are given is validated so often unless it sets how often, but a long one not more rarely than this.
VALIDATIONS_BY_DEFAULT = 5
LONGEST_VALIDATION_STEPS = 10_000
# A value of a column has a slice of its own where it has so many samples, and is one of the most frequent.
SLICE_MIN_SAMPLES = 20
SLICE_MAX_VALUES = 50
# Fields of a validation that are recorded only where they are set.
EXTRAS = {"slices", "metrics", "metric_for_best_model"}


class ValidationConfig(ConfigModel):
    """When and how the model is validated."""

    every_steps: int | None = Field(
        None,
        ge=1,
        description="Steps between two validations; the last step has one too. Default: a fifth of train.steps where "
        f"they are set, else a twentieth of the steps; at most {LONGEST_VALIDATION_STEPS:,}.",
        json_schema_extra=BY_ROWS,
    )
    batch_size: int = Field(256, ge=1, description="Samples of one forward pass, on average: fewer of long texts.")
    max_samples: int | None = Field(None, ge=1, description="Use only so many samples, the first ones. Default: all.")
    slices: list[str] = Field(
        [],
        description="Columns of data.categorical: an evaluation gives the metrics of the samples of each value, too; "
        f"values with fewer than {SLICE_MIN_SAMPLES} samples are taken together. A validation in training does not.",
    )
    metrics: list[str] = Field(
        [],
        description="Further metrics, of validations and evaluations alike, by their names in torchmetrics; of several "
        "classes the mean over classes. "
        + " ".join(f"{kind}: {', '.join(names)}." for kind, names in EXTRA_METRICS.items()),
    )
    metric_for_best_model: str | None = Field(
        None,
        description="The metric by which the best model is chosen, patience counts, and checkpoint.gate judges: one "
        "that is computed, of which higher is better. Fixed when the run begins. Default: auc for a binary target, "
        "macro_f1 for a multiclass one, mean_average_precision for a multilabel one.",
    )

    @model_serializer(mode="wrap")
    def _without_unused_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out unused options, so that they change nothing of a run that does not ask for them."""
        return {name: value for name, value in handler(self).items() if name not in EXTRAS or value}

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether step `step`, counted from 1, of a run of `num_steps` is followed by a validation."""
        every = self.every_steps or min(math.ceil(num_steps / VALIDATIONS_BY_DEFAULT), LONGEST_VALIDATION_STEPS)
        return step == num_steps or (step > 0 and step % every == 0)
