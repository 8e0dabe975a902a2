"""An expectation and what was found, in words for a person.

Invariant: of every expectation that Great Expectations has, also of one that is not known here.
"""

from typing import Any

from tasks.data.expectations.measures import SHARES

NUM_ROWS_SHOWN = 3
MOST_CHARACTERS = 60
PREFIX = "expect_"
# Of the kwargs those that name what an expectation is about, or how it is evaluated.
NOT_EXPECTED = ("column", "column_A", "column_B", "column_list", "batch_id")


def describe_expectation(expectation: dict[str, Any], columns: list[str]) -> str:
    """What it is about: its own description, or its type and columns."""
    if expectation.get("description"):
        return str(expectation["description"])
    return f"{_words(expectation['type'])}, of {', '.join(map(repr, columns))}"


def describe_expected(expectation: dict[str, Any], columns: list[str]) -> str:
    """What is expected: 'at most 20.0%'; where it is no range what the expectation was given."""
    kwargs = expectation["kwargs"].items()
    values = {name: value for name, value in kwargs if name not in NOT_EXPECTED and value not in (None, False)}
    is_range = expectation["type"].endswith("_to_be_between") and not values.keys() - {"min_value", "max_value"}
    if is_range:
        is_share = columns[0].startswith(SHARES)
        bounds = (("at least", values.get("min_value")), ("at most", values.get("max_value")))
        return " and ".join(f"{words} {_bound(bound, is_share)}" for words, bound in bounds if bound is not None)
    given = [f"{name} {shown(value)}" for name, value in values.items()]
    return ", ".join(given) or _words(expectation["type"])


def describe_found(result: dict[str, Any], row_id: str | None, value: float | None) -> str:
    """What was found: a measure's value, the rows that do not meet the expectation, or what was observed."""
    if value is not None:
        return _number(value)
    if "unexpected_count" in result:
        rows = f"{result['unexpected_count']:,} of {result['element_count']:,} rows of the sample do not"
        entries = (result.get("unexpected_index_list") or [])[:NUM_ROWS_SHOWN]
        examples = "; ".join(_row(entry, row_id) for entry in entries if isinstance(entry, dict))
        return f"{rows}: {examples}" if examples else rows
    observed = result.get("observed_value")
    return _number(observed) if isinstance(observed, int | float) else shown(observed)


def shown(value: Any) -> str:
    """A value in at most so many characters."""
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def _row(entry: dict[str, Any], row_id: str | None) -> str:
    values = ", ".join(shown(value) for name, value in entry.items() if name != row_id)
    return f"id {entry.get(row_id)!r} has {values}" if row_id in entry else values


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.4g}"


def _bound(bound: Any, is_share: bool) -> str:
    if isinstance(bound, int | float):
        return f"{bound:.1%}" if is_share else f"{bound:,}"
    return shown(bound)


def _words(kind: str) -> str:
    return kind.removeprefix(PREFIX).replace("_", " ")
