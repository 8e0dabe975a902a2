"""Whether validation can distinguish a better model from a worse one: looked at before anything is trained.

Invariant: a function of the configuration and of the data set's manifest, so every start of a run has the same answer.
"""

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError
from storage.target_kinds import headline_metric
from tasks.configuration.run import RunConfig


def require_defined_metric(config: RunConfig, dataset: DatasetManifest) -> None:
    """Raise `ConfigurationError` where something is decided by the AUC of a validation split with one class.

    Macro-F1, by which a multiclass run is judged, is always defined.
    """
    target, validation = dataset.target, dataset.splits["validation"]
    is_judged_by_auc = headline_metric(target.kind) == "auc"
    if not is_judged_by_auc or validation.class_counts is None or 0 not in validation.class_counts:
        return
    deciding = _find_deciding(config)
    if not deciding:
        return
    absent = target.classes[validation.class_counts.index(0)]
    raise ConfigurationError(
        f"The validation split has no row of the class {absent!r}, so its AUC is not defined, and no model can be "
        "found to be better than another.\n"
        f"  expected: rows of both classes in the validation split, as {' and '.join(deciding)} asks for the AUC\n"
        f"  found: {_count(dataset, 'validation')}; in training {_count(dataset, 'train')}\n"
        "  what to do: change data.split so that validation has rows of both classes, or give more rows of this one. "
        "Or train without a best model, to the last step: checkpoint.keep_best = 0, and neither train.patience nor "
        "checkpoint.gate"
    )


def _find_deciding(config: RunConfig) -> list[str]:
    """What in the configuration goes by the metric, as assignments."""
    deciding = [] if config.train.patience is None else [f"train.patience = {config.train.patience}"]
    deciding += [
        f"checkpoint.gate.{name} = {limit:g}"
        for name in ("lowest_metric", "largest_drop")
        if (limit := getattr(config.checkpoint.gate, name)) is not None
    ]
    return deciding + ([f"checkpoint.keep_best = {config.checkpoint.keep_best}"] if config.checkpoint.keep_best else [])


def _count(dataset: DatasetManifest, split: str) -> str:
    counts = dataset.splits[split].class_counts or []
    return ", ".join(f"{count:,} of {name!r}" for name, count in zip(dataset.target.classes, counts, strict=True))
