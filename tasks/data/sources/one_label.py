"""One label a row, which is the index of a class in the shards."""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from tasks.configuration.run import DataConfig
from tasks.data.labels import allowed_labels, are_booleans_words
from tasks.data.rule import Rule, not_null, outside_the_domain
from tasks.data.sources.column_types import BOOLEAN
from tasks.data.sql import identifier, literal


class OneLabel:
    """A column of texts, whole numbers or booleans."""

    shard_type = pa.int32()

    def roles(self, config: DataConfig) -> list[tuple[str, str]]:
        return [(column, "label") for column in config.label_columns]

    def label_sql(self, families: Mapping[str, str], config: DataConfig) -> str:
        (name,) = config.label_columns
        column = identifier(name)
        if families[name] == BOOLEAN and not are_booleans_words(config):
            column = f"CAST({column} AS INTEGER)"
        return f"CAST({column} AS VARCHAR)"

    def rules(self, config: DataConfig) -> list[Rule]:
        (name,) = config.label_columns
        rules = [not_null(name, "label", "drop these rows, or label them")]
        domain = allowed_labels(config)
        if domain is not None:
            listed = ", ".join(map(literal, domain))
            rules.append(outside_the_domain(name, domain, f"label NOT IN ({listed})", "label", config))
        return rules

    def sampled(self, config: DataConfig) -> dict[str, str]:
        return dict.fromkeys(config.label_columns, "label")

    def each_sql(self, rows: str) -> str:
        return f"SELECT split, label FROM {rows}"

    def indices_sql(self, classes: Sequence[str]) -> str:
        return f"(list_position([{', '.join(map(literal, classes))}], label) - 1)::INTEGER"

    def without_sql(self, rows: str, rare: Collection[str]) -> str:
        return f"(SELECT * FROM {rows} WHERE NOT label IN ({', '.join(map(literal, rare))}))"

    def merged_sql(self, rows: str, rare: Collection[str], name: str) -> str:
        is_rare = f"label IN ({', '.join(map(literal, rare))})"
        return f"(SELECT * REPLACE (CASE WHEN {is_rare} THEN {literal(name)} ELSE label END AS label) FROM {rows})"

    def describe_left_out(self, num_rows: str, rare: str) -> str:
        return f"Left out: {num_rows} of {rare}"
