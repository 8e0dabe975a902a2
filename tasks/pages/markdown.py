"""A table as Markdown, for an artifact in Prefect's UI.

Invariant: text from outside cannot leave its cell, and means itself.
"""

import re
from collections.abc import Collection, Iterable

from tasks.pages.tables import Table
from tasks.pages.words import plain


def tabulate(table: Table, most: int | None = None, left_out: Collection[str] = ()) -> str:
    """The last ones of its rows, if not all: the newest stand at the end. Without the columns `left_out`."""
    shown = [index for index, (name, _) in enumerate(table.columns) if name not in left_out]
    rows = table.rows if most is None else table.rows[-most:]
    lines = [
        _line(table.columns[index][0] for index in shown),
        _line("---" for _ in shown),
        *(_line(_escape(row[index].text) for index in shown) for row in rows),
    ]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """As text, whatever is in it: Markdown's own characters and HTML's mean themselves."""
    return re.sub(r"([\\`*_\[\]<>|~&])", r"\\\1", plain(text))
