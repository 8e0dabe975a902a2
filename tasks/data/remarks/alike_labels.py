"""Labels that differ by case, Unicode form or blanks alone: to the data they are classes of their own.

Invariant: nothing is merged; a remark names them.
"""

import unicodedata
from collections.abc import Collection

NUM_GROUPS_SHOWN = 5


def find_alike(labels: Collection[str]) -> list[list[str]]:
    """Groups of labels that look alike, each in order."""
    groups: dict[str, list[str]] = {}
    for label in sorted(labels):
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", label).casefold().split()), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def describe_alike(groups: list[list[str]]) -> list[str]:
    """At most one sentence."""
    if not groups:
        return []
    # Two ways of writing a letter look the same, so what is not ASCII is written by its number.
    shown = "; ".join(" and ".join(map(ascii, group)) for group in groups[:NUM_GROUPS_SHOWN])
    more = f"; and {len(groups) - NUM_GROUPS_SHOWN:,} more" if len(groups) > NUM_GROUPS_SHOWN else ""
    return [
        "Labels differ by upper and lower case, blanks or Unicode form alone, and are classes of their own: "
        f"{shown}{more}. If they mean the same, write them in one way."
    ]
