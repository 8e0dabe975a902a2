"""The columns of the sample of a source's rows, which only a user's own suite of expectations needs.

Invariant: they have the names that the user gave them; all but the length of the text or the tokens.
"""

from tasks.configuration.run import DataConfig
from tasks.data.sources.label_registry import form_of
from tasks.data.sql import identifier
from tasks.data.text_pairs import text_sql_of_each

# What the ids are called where no column has them.
ROW_ID = "file:row"
# The column of the sample that is none of the user's.
LENGTH = '"length of the text or tokens"'
# So many characters of a text are in the sample.
TEXT_CHARACTERS = 10_000


def sampled_columns(config: DataConfig) -> dict[str, str]:
    """The columns of the sample by the user's names, each with its SQL over `samples_sql`; none without a suite."""
    if config.expectations is None:
        return {}
    columns = {config.id or ROW_ID: "id"} | form_of(config).sampled(config)
    columns |= {
        name: f"left({text}, {TEXT_CHARACTERS})" for name, text in text_sql_of_each(config.text_columns).items()
    }
    columns |= {config.weight: "weight"} if config.weight else {}
    given = [(name, f"n{i}") for i, name in enumerate(config.numeric)]
    given += [(name, f"c{i}") for i, name in enumerate(config.categorical)]
    given += [(config.split.column, "CAST(split_key AS VARCHAR)")] if config.split.column else []
    for name, sql in given:
        columns.setdefault(name, sql)
    return columns


def sampled_sql(config: DataConfig) -> str:
    """SQL of these columns, to be added behind others."""
    return "".join(f", {sql} AS {identifier(name)}" for name, sql in sampled_columns(config).items())
