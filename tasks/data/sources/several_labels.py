"""Any number of labels a row, from a list or from columns of 0 and 1: indices of classes in the shards, in order.

On the way `label` is VARCHAR[], a text for each label. Invariant: a label that stands in a row's list twice is one, and
the order in a list does not matter. No label at all is an empty list; null is a missing value, and no rule allows it.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from tasks.configuration.run import DataConfig
from tasks.data.labels import allowed_labels
from tasks.data.rule import Rule, not_null, outside_the_domain
from tasks.data.sql import identifier, literal

WRONG = " = "  # between a column's name and a value that is neither 0 nor 1, for the rules to find
NUM_SHOWN = 8


class SeveralLabels:
    """What both forms have in common."""

    shard_type = pa.list_(pa.int32())

    def each_sql(self, rows: str) -> str:
        return f"SELECT split, unnest(list_distinct(label)) AS label FROM {rows}"

    def indices_sql(self, classes: Sequence[str]) -> str:
        position = f"list_position([{_listed(classes)}], l) - 1"
        return f"list_sort(list_distinct(list_transform(label, lambda l: {position})))::INTEGER[]"

    def without_sql(self, rows: str, rare: Collection[str]) -> str:
        kept = f"list_filter(label, lambda l: l NOT IN ({_listed(rare)}))"
        return f"(SELECT * REPLACE ({kept} AS label) FROM {rows})"

    def merged_sql(self, rows: str, rare: Collection[str], name: str) -> str:
        renamed = f"CASE WHEN l IN ({_listed(rare)}) THEN {literal(name)} ELSE l END"
        return f"(SELECT * REPLACE (list_transform(label, lambda l: {renamed}) AS label) FROM {rows})"

    def describe_left_out(self, num_rows: str, rare: str) -> str:
        return f"Taken from the labels of their rows, which stay ({num_rows}, counted for each label): {rare}"


class LabelList(SeveralLabels):
    """A column of lists of texts or whole numbers."""

    def roles(self, config: DataConfig) -> list[tuple[str, str]]:
        return [(column, "label with kind multilabel") for column in config.label_columns]

    def label_sql(self, _families: Mapping[str, str], config: DataConfig) -> str:
        (name,) = config.label_columns
        return f"CAST({identifier(name)} AS VARCHAR[])"

    def rules(self, config: DataConfig) -> list[Rule]:
        (name,) = config.label_columns
        remedy = "label these rows, or drop them; of a row without any label the list is empty"
        rules = [
            not_null(name, "label", remedy),
            Rule(name, "null among the labels", "a label at every position", "list_count(label) < len(label)",
                 f"label[:{NUM_SHOWN}]", "take the nulls out of these lists"),
        ]  # fmt: skip
        domain = allowed_labels(config)
        if domain is not None:
            unknown = f"list_filter(label, lambda l: l NOT IN ({_listed(domain)}))"
            broken, shown = f"coalesce(len({unknown}), 0) > 0", f"{unknown}[:{NUM_SHOWN}]"
            rules.append(outside_the_domain(name, domain, broken, shown, config))
        return rules

    def sampled(self, config: DataConfig) -> dict[str, str]:
        return dict.fromkeys(config.label_columns, "array_to_string(label, ', ')")


class LabelColumns(SeveralLabels):
    """A column of 0 and 1, or of booleans, for each label, which is called as the column is."""

    def roles(self, config: DataConfig) -> list[tuple[str, str]]:
        return [(column, "label with several columns") for column in config.label_columns]

    def label_sql(self, _families: Mapping[str, str], config: DataConfig) -> str:
        entries = ", ".join(_entry_sql(name) for name in config.label_columns)
        return f"list_filter([{entries}], lambda l: l IS NOT NULL)"

    def rules(self, config: DataConfig) -> list[Rule]:
        rules = []
        for name in config.label_columns:
            missing, begin = literal(f"{name}{WRONG}"), f"{name}{WRONG}"
            wrong = f"list_filter(label, lambda l: starts_with(l, {literal(begin)}) AND l <> {missing})"
            remedy = "write 1 for a row that has this label, and 0 for one that does not"
            rules += [
                Rule(name, "missing values", "0 or 1 in every row", f"list_contains(label, {missing})", "NULL", remedy),
                Rule(name, "other than 0 and 1", "only 0 and 1", f"len({wrong}) > 0",
                     f"substr({wrong}[1], {len(begin) + 1})", remedy),
            ]  # fmt: skip
        return rules

    def sampled(self, config: DataConfig) -> dict[str, str]:
        return {name: f"list_contains(label, {literal(name)})::INTEGER" for name in config.label_columns}


def _entry_sql(name: str) -> str:
    """SQL of the column's name where it is 1, null where it is 0, else a text that no column is called."""
    number = f"CAST({identifier(name)} AS HUGEINT)"  # which all whole numbers fit into, and booleans
    wrong = f"{literal(f'{name}{WRONG}')} || coalesce(CAST({number} AS VARCHAR), '')"
    return f"CASE {number} WHEN 1 THEN {literal(name)} WHEN 0 THEN NULL ELSE {wrong} END"


def _listed(labels: Collection[str]) -> str:
    return ", ".join(map(literal, labels))
