"""The protocol of how rows have their labels: from the columns of the source to the indices of classes in the shards.

Invariant: what becomes of a row's labels depends on the row and the classes alone. Which labels there may be, and their
order, is the same for all forms: `tasks/data/labels.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from tasks.configuration.run import DataConfig
from tasks.data.rule import Rule


class LabelForm(Protocol):
    """One form. SQL is DuckDB's; `label` is a column of the view `samples` and of all that is made of it."""

    @property
    def shard_type(self) -> pa.DataType:
        """What a row's label is in the shards, as one index of a class or several."""

    def roles(self, config: DataConfig) -> list[tuple[str, str]]:
        """The columns that the labels are in, each with a role that `FITTING` has."""

    def label_sql(self, families: Mapping[str, str], config: DataConfig) -> str:
        """SQL of `label` over the columns of the source; `families` are their kinds of type."""

    def rules(self, config: DataConfig) -> list[Rule]:
        """What no row's label may do."""

    def sampled(self, config: DataConfig) -> dict[str, str]:
        """For a suite of expectations: columns by the names that the user gave them, each with its SQL over `label`."""

    def each_sql(self, rows: str) -> str:
        """SQL of the columns `split` and `label` of these rows: one text for each label that a row has."""

    def indices_sql(self, classes: Sequence[str]) -> str:
        """SQL of the index of a row's class, or of its classes in order, each once, as `shard_type`."""

    def without_sql(self, rows: str, rare: Collection[str]) -> str:
        """SQL of these rows without those labels."""

    def merged_sql(self, rows: str, rare: Collection[str], name: str) -> str:
        """SQL of these rows, in which each of those labels is `name`."""

    def describe_left_out(self, num_rows: str, rare: str) -> str:
        """What `without_sql` has left out, in words, of '3 rows' with '2 labels of which a split has no row'."""
