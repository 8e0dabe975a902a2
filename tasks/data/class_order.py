"""The order of a target's classes, which is the order of the model's outputs, and whether booleans are words.

Invariant: both count among the inputs of a data set, and so in its digest, only where they decide something. Labels
that come in the same order by either rule give the data set that they gave to versions which knew the order `text`
alone; but 0 and 1 do not, which were booleans there, or were not.
"""

import re
from collections.abc import Collection
from decimal import Decimal, InvalidOperation
from typing import Any

from storage.datasets import DatasetManifest, find_dataset
from storage.objects.digests import digest_of
from storage.objects.store import Store
from tasks.configuration import DataConfig
from tasks.data.labels import NUMBERS, WORDS, are_booleans_words, label_domain

NUMBER = re.compile(r"(\d+)")
NATURAL = {"class_order": "natural"}
BOOLEANS = {"boolean_labels": "words"}


def order_labels(labels: Collection[str], config: DataConfig) -> list[str]:
    """The labels that the data have, in the order that the configuration names."""
    return _as_text(labels) if config.class_order == "text" else _naturally(labels)


def with_class_order(inputs: dict[str, Any], labels: Collection[str], config: DataConfig) -> dict[str, Any]:
    """The inputs of a data set that has these labels."""
    possible = possible_inputs(inputs, config)
    if inputs | BOOLEANS in possible and set(labels) in (set(WORDS), set(NUMBERS)):
        return inputs | BOOLEANS
    return inputs | NATURAL if inputs | NATURAL in possible and _naturally(labels) != _as_text(labels) else inputs


def possible_inputs(inputs: dict[str, Any], config: DataConfig) -> list[dict[str, Any]]:
    """The inputs that a data set of this configuration may have, as long as its labels are not known."""
    if label_domain(config) is not None:
        return [inputs]
    natural = [] if config.class_order == "text" or config.kind == "binary" else [inputs | NATURAL]
    return natural + ([inputs | BOOLEANS] if are_booleans_words(config) else []) + [inputs]


def find_prepared(store: Store, inputs: dict[str, Any], config: DataConfig) -> DatasetManifest | None:
    """The published data set of these inputs with its classes in the configured order, or None."""
    for possible in possible_inputs(inputs, config):
        published = find_dataset(store, digest_of(possible))
        if published is not None and with_class_order(inputs, published.target.classes, config) == possible:
            return published
    return None


def _naturally(labels: Collection[str]) -> list[str]:
    """Numbers by value if all are numbers; if not, each by its parts: text by characters, whole numbers by value."""
    try:
        numbers = {label: Decimal(label) for label in labels}
    except InvalidOperation:
        return sorted(labels, key=lambda label: (_parts(label), label))
    if not all(number.is_finite() for number in numbers.values()):
        return sorted(labels, key=lambda label: (_parts(label), label))
    return sorted(labels, key=lambda label: (numbers[label], label))


def _parts(label: str) -> list[str | Decimal]:
    """Text and number in turn, beginning with a text, which may be empty: so parts of one place can be compared."""
    return [Decimal(part) if index % 2 else part for index, part in enumerate(NUMBER.split(label))]


def _as_text(labels: Collection[str]) -> list[str]:
    """Whole numbers by value if all are whole numbers; if not, by characters."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)
