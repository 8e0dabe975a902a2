"""Whether validation can distinguish a better model from a worse one: looked at before anything is trained.

Invariant: a function of the configuration and of the data set's manifest, so every start of a run has the same answer.
"""

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError
from storage.runs.metric_values import METRIC_WORDS
from storage.target_kinds import FEWEST_CLASSES, NEED_CLASSES, headline_metric
from tasks.configuration.run import RunConfig
from tasks.text import listed


def require_defined_metric(config: RunConfig, dataset: DatasetManifest) -> None:
    """Raise `ConfigurationError` where something is decided by a metric that validation on too few classes lacks.

    Macro-F1, by which a multiclass run is judged by default, is always defined.
    """
    target, counts = dataset.target, dataset.splits["validation"].class_counts
    metric = headline_metric(target.kind, config.validation.metric_for_best_model)
    fewest = FEWEST_CLASSES[target.kind]
    if metric not in NEED_CLASSES or counts is None or sum(count > 0 for count in counts) >= fewest:
        return
    deciding = _find_deciding(config)
    if not deciding:
        return
    name, absent = METRIC_WORDS[metric], [target.classes[index] for index, count in enumerate(counts) if not count]
    raise ConfigurationError(
        f"The validation split has no row of the {_name_classes(absent)}, so its {name} is not defined, and no model "
        "can be found to be better than another.\n"
        f"  expected: rows of at least {'one class' if fewest == 1 else 'two classes'} in the validation split, as "
        f"{' and '.join(deciding)} asks for the {name}\n"
        f"  found: {_count(dataset, 'validation')}; in training {_count(dataset, 'train')}\n"
        "  what to do: change data.split so that validation has rows of several classes, or give more rows of these. "
        "Or train without a best model, to the last step: checkpoint.keep_best = 0, and neither train.patience nor "
        "checkpoint.gate"
    )


def _name_classes(absent: list[str]) -> str:
    return f"class {absent[0]!r}" if len(absent) == 1 else f"classes {listed(map(repr, absent))}"


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
