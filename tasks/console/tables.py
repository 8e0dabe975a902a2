"""One table for a page and for a terminal: rows of plain text, which a macro of the templates or rich lays out.

Invariant: a cell is text, or a share in [0, 1] that a page draws as a bar as well; there is no markup in it, and none
is read into it. Where rows are left out in a terminal, a line gives their number, and how all of them are shown; where
columns are, because it is narrow, a line names them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as TerminalTable
from rich.text import Text

from tasks.text import count_of, plain

MOST_ROWS = 20
# In fewer characters a text is hard to read, however many lines it has.
FEWEST_CHARACTERS = 12
BETWEEN_COLUMNS = 2
Kind = Literal["text", "number", "code", "bar", "outcome", "date"]
NUMBERS: tuple[Kind, ...] = ("number", "bar")
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

    What `below` names, a column of long texts, a page shows below each row, over all other columns. Of `narrow` a
    terminal leaves out as many, from the first one on, as it is too narrow for.
    """

    columns: list[tuple[str, Kind]]
    rows: list[list[Cell]]
    wide: tuple[str, ...] = ()
    below: str | None = None
    narrow: tuple[str, ...] = ()


def show_table(table: Table, most: int | None = None) -> RenderableType:
    """The table for a terminal; if `most` is given, the last ones of its rows: the newest stand at the end."""
    rows = table.rows if most is None else table.rows[-most:]
    shown, left_out = _Shown(replace(table, rows=rows)), len(table.rows) - len(rows)
    if not left_out:
        return shown
    return Group(shown, Text(f"{count_of(left_out, 'earlier row')} not shown: --json lists all of them."))


@dataclass(frozen=True)
class _Shown:
    """A table whose columns are chosen when the terminal's width is known."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [index for index, (name, _) in enumerate(self.table.columns) if name not in self.table.wide]
        left_out = []
        for name in self.table.narrow:
            if _fewest_characters(self.table, columns) <= options.max_width:
                break
            left_out.append(name)
            columns = [index for index in columns if self.table.columns[index][0] != name]
        yield _lay_out(self.table, columns)
        if left_out:
            yield Text(f"Not shown in a terminal of this width: {', '.join(left_out)}. --json has them.")


def _fewest_characters(table: Table, columns: Sequence[int]) -> int:
    """The least width in which these columns, by their indices, can be read."""
    widths = []
    for index in columns:
        name, kind = table.columns[index]
        width = max(cell_len(plain(text)) for text in (name, *(row[index].text for row in table.rows)))
        widths.append(width if kind in NUMBERS else min(width, FEWEST_CHARACTERS))
    return sum(widths) + BETWEEN_COLUMNS * (len(widths) - 1)


def _lay_out(table: Table, columns: Sequence[int]) -> TerminalTable:
    shown = TerminalTable(box=None, pad_edge=False, padding=(0, BETWEEN_COLUMNS, 0, 0))
    for name, kind in (table.columns[index] for index in columns):
        is_number = kind in NUMBERS
        # A number stays in its line; a text goes on in the next one, however long a word in it is.
        shown.add_column(Text(name), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in table.rows:
        shown.add_row(*(_show_cell(row[index]) for index in columns))
    return shown


def _show_cell(cell: Cell) -> Text:
    style = _STYLES.get(cell.key, _OTHER_OUTCOME) if cell.key else ""
    return Text(plain(cell.text), style)
