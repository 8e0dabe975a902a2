"""Rows that are left out, or are of another class than their label's, because a split has no row of their label.

Invariant: all such rows are counted, and reported.
"""

from tasks.configuration.run import DataConfig
from tasks.data.rare_classes import OTHER, Counts, describe_rows
from tasks.data.sources.label_registry import form_of
from tasks.text import count_of


def describe_rare(rare: Counts, config: DataConfig) -> list[str]:
    """At most one sentence, of the rows of each label in each split."""
    if not rare:
        return []
    num_rows = count_of(sum(map(sum, rare.values())), "row")
    labels = f"{count_of(len(rare), 'label')} of which a split has no row"
    where = f'(data.rare_classes = "{config.rare_classes}"): {describe_rows(rare, rare, config)}.'
    if config.rare_classes == "drop":
        return [f"{form_of(config).describe_left_out(num_rows, labels)} {where}"]
    return [f"Of the class {OTHER!r} are {num_rows} of {labels} {where}"]
