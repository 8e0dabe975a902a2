"""One table for a page and for a terminal: rows of plain text, which a macro of the templates or rich lays out.

Invariant: a cell is text, or a share in [0, 1] that a page draws as a bar as well; there is no markup in it, and none
is read into it. Where rows are left out in a terminal, a line gives their number, and how all of them are shown.
"""

from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text

from tasks.text import count_of, plain

MOST_ROWS = 20
Kind = Literal["text", "number", "code", "bar", "outcome", "date"]
# What the colours of outcomes on a page are in a terminal.
_STYLES = {"completed": "green", "budget": "green", "preempted": "yellow"}
_OTHER_OUTCOME = "bold red"


@dataclass(frozen=True)
class Cell:
    """`text` is what is read; `fraction` the bar's length; `key` the outcome that colours the cell."""

    text: str
    fraction: float | None = None
    key: str = ""


@dataclass(frozen=True)
class Table:
    """Columns are (heading, kind); every row has a cell for each. For those in `wide` a terminal has no room.

    What `below` names, a column of long texts, a page shows below each row, over all other columns.
    """

    columns: list[tuple[str, Kind]]
    rows: list[list[Cell]]
    wide: tuple[str, ...] = ()
    below: str | None = None


def show_table(table: Table, most: int | None = None) -> RenderableType:
    """The table for a terminal; if `most` is given, the last ones of its rows: the newest stand at the end."""
    rows = table.rows if most is None else table.rows[-most:]
    shown = TerminalTable(box=None, pad_edge=False)
    columns = [(index, *column) for index, column in enumerate(table.columns) if column[0] not in table.wide]
    for _, name, kind in columns:
        is_number = kind in ("number", "bar")
        # A number stays in its line; a text goes on in the next one, however long a word in it is.
        shown.add_column(Text(name), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        shown.add_row(*(_show_cell(row[index]) for index, _, _ in columns))
    left_out = len(table.rows) - len(rows)
    if not left_out:
        return shown
    return Group(shown, Text(f"{count_of(left_out, 'earlier row')} not shown: --json lists all of them."))


def _show_cell(cell: Cell) -> Text:
    style = _STYLES.get(cell.key, _OTHER_OUTCOME) if cell.key else ""
    return Text(plain(cell.text), style)
