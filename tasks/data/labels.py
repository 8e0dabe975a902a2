"""What a row's label may be, and what its class is called.

Invariant: until it is described a data set knows a class by its label as it is in the data; `data.class_names` is for
its description.
"""

from collections.abc import Collection, Sequence

from tasks.configuration.run import DataConfig

NUMBERS, WORDS = ["0", "1"], ["false", "true"]


def label_domain(config: DataConfig) -> list[str] | None:
    """The labels that the configuration lists, in order; None when the data decide."""
    names = _names(config)
    return config.classes or list(names) or (None if isinstance(config.label, str) else config.label)


def allowed_labels(config: DataConfig) -> list[str] | None:
    """The labels that a row may have; None where it may be any."""
    given = label_domain(config)
    if given is not None or config.kind != "binary":
        return given
    return [*NUMBERS, *WORDS]


def domain_of(labels: Collection[str], config: DataConfig) -> list[str] | None:
    """All labels of a target that has these, in order; None where these are all."""
    given = label_domain(config)
    if given is not None or config.kind != "binary":
        return given
    return WORDS if set(WORDS) & set(labels) else NUMBERS


def may_be_without_classes(config: DataConfig) -> bool:
    """Whether the target still is one when it has fewer classes: a binary one needs both."""
    return config.kind != "binary"


def are_booleans_words(config: DataConfig) -> bool:
    """Whether a boolean label is true or false, and not 1 or 0."""
    given = label_domain(config)
    return given is None or bool(set(WORDS) & set(given))


def name_of(label: str, config: DataConfig) -> str:
    """What the class of these rows is called; a class that is made of several has a name and no label."""
    return _names(config).get(label, label)


def labels_called(names: Sequence[str], rare: Collection[str], config: DataConfig) -> list[str]:
    """The labels of classes with these names, of which none is of one of these labels alone: the other way round."""
    labels = {name: label for label, name in _names(config).items() if label not in rare}
    return [labels.get(name, name) for name in names]


def _names(config: DataConfig) -> dict[str, str]:
    """By label; a list names the labels 0, 1 and so on."""
    given = config.class_names or {}
    return given if isinstance(given, dict) else {str(code): name for code, name in enumerate(given)}
