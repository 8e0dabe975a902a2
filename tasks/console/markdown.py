"""Markdown, for Prefect's artifacts and the page of an exported model.

Invariant: text from outside cannot leave its cell, and is no picture, link or markup of the page.
"""

import re
from collections.abc import Collection, Iterable

from tasks.console.tables import Table
from tasks.text import plain


def markdown_table(table: Table, most: int | None = None, without: Collection[str] = ()) -> str:
    """Without the columns in `without`; if `most` is given, the last ones of its rows: the newest stand at the end."""
    shown = [index for index, (name, _) in enumerate(table.columns) if name not in without]
    rows = table.rows if most is None else table.rows[-most:]
    lines = [
        _line(escape_markdown(table.columns[index][0]) for index in shown),
        _line("---" for _ in shown),
        *(_line(escape_markdown(row[index].text) for index in shown) for row in rows),
    ]
    return "\n".join(lines)


def escape_markdown(text: object) -> str:
    """As text, whatever is in it: Markdown's own characters and HTML's mean themselves."""
    return re.sub(r"([\\`*_\[\]<>|~&])", r"\\\1", plain(text))


def as_code(text: object) -> str:
    """As a piece of code, also in a table's cell: there a backtick has no escape, so it becomes an apostrophe."""
    return f"`{code_text(text)}`"


def code_text(text: object) -> str:
    """What stands between the backticks of a piece of code."""
    return plain(text).replace("|", "\\|").replace("`", "'")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
