"""SQL in small: names and texts as SQL, and the one row of a query."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb  # takes longer to import than a mistake in a column takes to be found


def only_row(connection: "duckdb.DuckDBPyConnection", query: str) -> tuple[Any, ...]:
    """The one row of a query, read to its end: a result that is not finished blocks the connection."""
    (row,) = connection.execute(query).fetchall()
    return tuple(row)


def identifier(name: str) -> str:
    """A column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("'", "''") + "'"
