"""What is refused before training because validation could not tell a better model from a worse one."""

from typing import Any

import pytest

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError
from tasks.config.metric import require_defined_metric
from tasks.configuration.run import DataConfig, RunConfig
from tests.helpers.finished_runs import dataset_of


def dataset(kind: str, validation_counts: list[int] | None) -> DatasetManifest:
    found = dataset_of(("no", "yes"), kind, "label")
    validation = found.splits["validation"].model_copy(update={"class_counts": validation_counts})
    train = found.splits["train"].model_copy(update={"class_counts": [7000, 300]})
    return found.model_copy(update={"splits": found.splits | {"validation": validation, "train": train}})


def configured(kind: str = "binary", **sections: Any) -> RunConfig:
    data = DataConfig(source="s", text="t", label="label", kind=kind)
    return RunConfig(run="r", data=data, **sections)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({}, "checkpoint.keep_best = 1 asks"),
        ({"train": {"patience": 2}}, "train.patience = 2 and checkpoint.keep_best = 1"),
        ({"checkpoint": {"keep_best": 0, "gate": {"lowest_metric": 0.7}}}, "checkpoint.gate.lowest_metric = 0.7 asks"),
    ],
)
def test_what_goes_by_the_auc_of_a_validation_split_with_one_class_is_refused(
    sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_defined_metric(configured(**sections), dataset("binary", [1200, 0]))
    told = str(refused.value)
    assert (
        "no row of the class 'yes'" in told and named in told and "1,200 of 'no', 0 of 'yes'; in training 7,000" in told
    )


def test_what_is_defined_or_not_asked_for_or_not_known_passes() -> None:
    require_defined_metric(configured(), dataset("binary", [1199, 1]))
    require_defined_metric(configured(), dataset("binary", None))
    require_defined_metric(configured(), dataset("multiclass", [1200, 0]))
    require_defined_metric(configured(checkpoint={"keep_best": 0}), dataset("binary", [1200, 0]))


def test_of_a_metric_that_was_chosen_it_depends_on_what_that_one_needs() -> None:
    require_defined_metric(configured(validation={"metric_for_best_model": "macro_f1"}), dataset("binary", [1200, 0]))
    asked = {"metrics": ["cohen_kappa"], "metric_for_best_model": "cohen_kappa"}
    with pytest.raises(ConfigurationError, match="its Cohen's kappa is not defined"):
        require_defined_metric(configured("multiclass", validation=asked), dataset("multiclass", [1200, 0]))
