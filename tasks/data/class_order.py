"""The natural order of labels, which is the order of the model's outputs where the configuration lists none."""

import re
from collections.abc import Collection
from decimal import Decimal, InvalidOperation

NUMBER = re.compile(r"(\d+)")


def order_labels(labels: Collection[str]) -> list[str]:
    """Numbers by value if all are numbers; if not, each by its parts: text by characters, whole numbers by value."""
    try:
        numbers = {label: Decimal(label) for label in labels}
    except InvalidOperation:
        return sorted(labels, key=lambda label: (_parts(label), label))
    if not all(number.is_finite() for number in numbers.values()):
        return sorted(labels, key=lambda label: (_parts(label), label))
    return sorted(labels, key=lambda label: (numbers[label], label))


def _parts(label: str) -> list[str | Decimal]:
    """Text and number in turn, beginning with a text, which may be empty: parts at one position compare."""
    return [Decimal(part) if index % 2 else part for index, part in enumerate(NUMBER.split(label))]
