"""Two texts of a row that a model reads together, which preparation carries as one text.

Invariant: the character between them is in neither: it is a control character, which a text has by mistake, and is a
space there. So all that looks at a row's text, for its length, its hash or whether it repeats, looks at both.
"""

from collections.abc import Sequence

from tasks.data.sql import identifier

SEPARATOR = "\x1f"
SEPARATOR_SQL = "chr(31)"


def text_sql(columns: Sequence[str]) -> str:
    """SQL of a row's text, from the user's columns: null where one of them is."""
    texts = [f"CAST({identifier(column)} AS VARCHAR)" for column in columns]
    if len(texts) == 1:
        return texts[0]
    return f" || {SEPARATOR_SQL} || ".join(f"replace({text}, {SEPARATOR_SQL}, ' ')" for text in texts)


def text_sql_of_each(columns: Sequence[str]) -> dict[str, str]:
    """For each of the user's columns the SQL of its text, from that of the row, which is called `text`."""
    if len(columns) == 1:
        return {columns[0]: "text"}
    return {column: f"split_part(text, {SEPARATOR_SQL}, {place})" for place, column in enumerate(columns, 1)}


def texts_of(texts: list[str], columns: Sequence[str]) -> list[str] | list[tuple[str, ...]]:
    """The rows' texts as the tokenizer takes them: one each, or the texts of all columns."""
    return texts if len(columns) == 1 else [tuple(text.split(SEPARATOR)) for text in texts]
