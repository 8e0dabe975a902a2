"""Rare classes: those of which a split has no row. They are refused, left out, or become one class.

Invariant: which these are follows from the rows of each label in each split alone, and what becomes of a row from its
label.
"""

from collections.abc import Collection

from storage.datasets import SPLITS
from tasks.configuration.run import DataConfig
from tasks.data.labels import name_of
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import broken_contract

OTHER = "other"
NUM_SHOWN = 10
# The rows of each label in each split, in the order of `SPLITS`.
Counts = dict[str, list[int]]


def find_rare(counts: Counts, config: DataConfig) -> list[str]:
    """The labels whose rows are treated otherwise, in order; none where such classes are refused.

    Raises `ContractError` where one class cannot be made of them, or too few classes would be left.
    """
    if config.rare_classes == "error":
        return []
    rare = sorted(label for label, of_splits in counts.items() if 0 in of_splits)
    if not rare:
        return []
    if config.rare_classes == "other":
        _require_one_class(rare, counts, config)
    num_left = len(counts) - len(rare) + (config.rare_classes == "other")
    if num_left < 2:
        raise broken_contract(
            f"Column {config.target_name!r} has {num_left} of two classes or more with data.rare_classes = "
            f'"{config.rare_classes}".',
            "two classes or more of which each split has a row",
            f"a split has no row of {len(rare):,} of {len(counts):,}: {describe_rows(rare, counts, config)}",
            "give more rows, check that data.label names the target, or change data.split",
        )
    return rare


def treat_counts(counts: Counts, rare: Collection[str], config: DataConfig) -> Counts:
    """The rows of each class once those of rare labels are treated."""
    if not rare:
        return counts
    treated = {label: of_splits for label, of_splits in counts.items() if label not in rare}
    return treated | {OTHER: _add_up(rare, counts)} if config.rare_classes == "other" else treated


def treated_sql(rows: str, rare: Collection[str], config: DataConfig) -> str:
    """SQL of these rows, which have a column `label`: without the rare labels, or with the label `other`."""
    if not rare:
        return rows
    form = form_of(config)
    return form.without_sql(rows, rare) if config.rare_classes == "drop" else form.merged_sql(rows, rare, OTHER)


def describe_rows(rare: Collection[str], counts: Counts, config: DataConfig) -> str:
    """Labels with all their rows, the most frequent first: "'a' (3 rows), 'b' (1 row)"."""
    in_order = sorted(((sum(counts[label]), label) for label in rare), key=lambda found: (-found[0], found[1]))
    shown = ", ".join(
        f"{name_of(label, config)!r} ({count:,} {'row' if count == 1 else 'rows'})"
        for count, label in in_order[:NUM_SHOWN]
    )
    return shown + (f" and {len(in_order) - NUM_SHOWN:,} more" if len(in_order) > NUM_SHOWN else "")


def _require_one_class(rare: list[str], counts: Counts, config: DataConfig) -> None:
    merged = _add_up(rare, counts)
    found = f"a split has no row of {describe_rows(rare, counts, config)}"
    called = [label for label in counts if OTHER in (label, name_of(label, config)) and label not in rare]
    if called:
        raise broken_contract(
            f"Column {config.target_name!r} has a class called {OTHER!r} already.",
            'no class of that name with data.rare_classes = "other": it is the one that rare classes become',
            f"{sum(sum(counts[label]) for label in called):,} rows of it; {found}",
            'rename the class in the data, or set data.rare_classes = "drop" to leave the rows of rare classes out',
        )
    lacking = [name for name, count in zip(SPLITS, merged, strict=True) if count == 0]
    if lacking:
        of_splits = ", ".join(f"{name} {count:,}" for name, count in zip(SPLITS, merged, strict=True))
        raise broken_contract(
            f"Column {config.target_name!r}: the class {OTHER!r}, which the rare classes become, is too rare itself.",
            "a row of it in each split",
            f"none in the {' and the '.join(lacking)} split ({of_splits}); {found}",
            'set data.rare_classes = "drop" to leave these rows out, give more of them, or change data.split',
        )


def _add_up(rare: Collection[str], counts: Counts) -> list[int]:
    return [sum(counts[label][split] for label in rare) for split in range(len(SPLITS))]
