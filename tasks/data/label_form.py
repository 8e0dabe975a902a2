"""Labels that look like something else than names of classes: numbers to predict, or several labels in one text.

Invariant: they are classes all the same; a remark, and an error that comes of it, say what they look like.
"""

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

NUMBERS, JOINED = "numbers", "joined"
FRACTION = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?|[+-]?\d+(\.\d*)?[eE][+-]?\d+")
NUMBER = re.compile(r"[+-]?\d+|" + FRACTION.pattern)
SEPARATORS = ",;|"
# Ratings such as 0.5, 1.0, ... are few, and may well be classes.
FEWEST_NUMBERS = 30
FEWEST_JOINED = 3


def find_form(labels: Collection[str]) -> dict[str, Any]:
    """What the labels look like, JSON-able; nothing where they look like names."""
    fractions = [label for label in labels if FRACTION.fullmatch(label)]
    if len(labels) >= FEWEST_NUMBERS and 2 * len(fractions) > len(labels) and all(map(NUMBER.fullmatch, labels)):
        return {"form": NUMBERS, "example": fractions[0], "count": len(labels)}
    for separator in SEPARATORS:
        joined = [label for label in labels if _is_joined(label, separator)]
        parts = Counter(part.strip() for label in labels for part in label.split(separator))
        # Each part of theirs stands in another label, too: a comma within a name does not make that so.
        again = [label for label in joined if all(parts[part.strip()] > 1 for part in label.split(separator))]
        if len(again) >= FEWEST_JOINED and 2 * len(again) > len(joined):
            return {"form": JOINED, "example": again[0], "count": len(again), "separator": separator}
    return {}


def describe_form(found: dict[str, Any]) -> list[str]:
    """At most one sentence."""
    if found.get("form") == NUMBERS:
        return [
            f"The labels are {found['count']:,} different numbers, such as {found['example']}, and each is a class of "
            "its own. A number is not predicted as a number (no regression): write the name of a range into the column."
        ]
    if found.get("form") == JOINED:
        return [
            f"{found['count']:,} labels, such as {found['example']!r}, look like several labels joined by "
            f"{found['separator']!r}, and each such text is a class of its own. For any number of labels a row write "
            'lists (JSON Lines, Parquet or Arrow) and set data.kind = "multilabel".'
        ]
    return []


def _is_joined(label: str, separator: str) -> bool:
    parts = label.split(separator)
    return len(parts) > 1 and all(part.strip() for part in parts)
