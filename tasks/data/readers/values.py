"""What a value of a CSV or JSON Lines file is, by what its column means.

Invariant: the meaning of a column in the configuration decides its type, and not what its first rows look like; only
how times are written is decided by the first one. An id, a label or a category keeps its characters, `007` its zeros. A
value that does not fit raises `ValueError`.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tasks.configuration.run import DataConfig
from tasks.data.labels import NUMBERS, WORDS, allowed_labels, are_booleans_words
from tasks.data.sources.columns import named_columns
from tasks.data.sources.samples_sql import LARGEST_WHOLE

Parse = Callable[[Any], Any]

LARGEST_UNSIGNED = 2**64 - 1
WHOLE = re.compile(r"[+-]?\d+")
NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)\s*", re.IGNORECASE | re.ASCII
)
BOOLEANS = {"true": True, "false": False}
EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Meaning:
    """How the values of a column are read: the type that they get, what is expected of them, and for what."""

    column: str
    role: str
    data_type: pa.DataType
    expected: str
    parse: Parse


def meanings_of(config: DataConfig, is_typed: bool) -> list[Meaning]:
    """One for each column that the configuration names; `is_typed` is true of JSON, whose values have types."""
    roles: dict[str, list[str]] = {}
    for column, role in named_columns(config):
        roles.setdefault(column, []).append(role)
    return [_meaning(column, found, config, is_typed) for column, found in roles.items()]


def _meaning(column: str, roles: list[str], config: DataConfig, is_typed: bool) -> Meaning:
    first, shown = roles[0], " and ".join(f"data.{role}" for role in roles)
    if first in ("tokens", "attention_mask"):
        expected = "lists of whole numbers" + ("" if is_typed else ", written as [1, 2, 3]")
        return Meaning(column, shown, pa.list_(pa.int64()), expected, _Lists(is_typed, first == "attention_mask"))
    if first == "label with kind multilabel":
        return Meaning(column, shown, pa.list_(pa.string()), "lists of texts or whole numbers", _labels)
    if first == "label with several columns":
        return Meaning(column, shown, pa.int64(), "0 and 1, or true and false", _flag)
    if len(roles) > 1 and (first == "numeric" or roles[-1].endswith("by time")):
        # One type serves both: a number that is a value to split by must have one way to be written.
        return Meaning(column, shown, pa.int64(), "whole numbers", _whole)
    if first in ("numeric", "weight"):
        return Meaning(column, shown, pa.float64(), "numbers", _number_of_json if is_typed else _number_of_text)
    if first.endswith("by time"):
        expected = "times such as 2026-01-31T12:00:00 or whole numbers, one kind in all rows"
        return Meaning(column, shown, pa.int64(), expected, Times(is_typed))
    if is_typed:
        return _meaning_in_json(column, first, shown, config)
    is_boolean = (
        first == "label"
        and config.kind == "binary"
        and sorted(allowed_labels(config) or []) in (NUMBERS, WORDS, [*NUMBERS, *WORDS])
    )
    words = are_booleans_words(config)
    return Meaning(column, shown, pa.string(), "text", (lambda value: _boolean(value, words)) if is_boolean else str)


def _meaning_in_json(column: str, role: str, shown: str, config: DataConfig) -> Meaning:
    words = role != "label" or are_booleans_words(config)
    kinds: dict[str, tuple[str, Parse]] = {
        "text": ("text", _text),
        "id": ("text or whole numbers", _text_or_whole),
        "label": ("text, whole numbers or booleans", lambda value: _label(value, words)),
        "categorical": ("text, numbers or booleans", _category),
        "split.column by given": ("text or whole numbers", _text_or_whole),
    }
    expected, parse = kinds.get(role, ("text, whole numbers or booleans", lambda value: _label(value, True)))
    return Meaning(column, shown, pa.string(), expected, parse)


def _boolean(value: str, words: bool) -> str:
    """True and False, however they are written, for a binary target."""
    known = BOOLEANS.get(value.lower())
    return value if known is None else _label(known, words)


def _number_of_text(value: str) -> float | None:
    known = BOOLEANS.get(value.lower())
    if known is None and not NUMBER.fullmatch(value):
        raise ValueError(value)
    return _no_nan(float(value) if known is None else float(known))


def _number_of_json(value: Any) -> float | None:
    if not isinstance(value, int | float):
        raise ValueError(value)
    try:
        return _no_nan(float(value))
    except OverflowError as error:
        raise ValueError(value) from error


def _no_nan(number: float) -> float | None:
    return None if math.isnan(number) else number


def _whole(value: Any) -> int:
    if isinstance(value, str) and WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -LARGEST_WHOLE - 1 <= value <= LARGEST_WHOLE:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    if not value.isascii():
        value.encode()  # half of a surrogate pair, which JSON can write, is no text
    return value


def _text_or_whole(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _label(value: Any, words: bool) -> str:
    """A boolean is true or false, as in a Parquet file, or 1 or 0."""
    if isinstance(value, bool):
        return str(value).lower() if words else str(int(value))
    return _text_or_whole(value)


def _labels(value: Any) -> list[str | None]:
    """Texts or whole numbers; a null among them is for the contract to report."""
    if not isinstance(value, list):
        raise ValueError(value)
    return [entry if entry is None else _text_or_whole(entry) for entry in value]


def _flag(value: Any) -> int:
    """0 or 1, or a boolean, however it is written."""
    known = BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value
    number = int(known) if isinstance(known, bool) else _whole(known)
    if number not in (0, 1):
        raise ValueError(value)
    return number


def _category(value: Any) -> str | None:
    """As of a Parquet file: 3.0 and 3 are one category, and NaN is a missing one."""
    if not isinstance(value, float):
        return _label(value, True)
    if math.isnan(value):
        return None
    return str(int(value)) if abs(value) < 1e15 and value.is_integer() else repr(value)


class _Lists:
    """Lists of whole numbers, those of a mask also of booleans; a null in a list is for the contract to report."""

    def __init__(self, is_typed: bool, is_mask: bool) -> None:
        self.is_typed = is_typed
        self.is_mask = is_mask

    def __call__(self, value: Any) -> list[int | None]:
        try:
            found = value if self.is_typed else json.loads(value)
        except RecursionError as error:
            raise ValueError(value) from error
        if not isinstance(found, list):
            raise ValueError(value)
        return [entry if entry is None else self._entry(entry) for entry in found]

    def _entry(self, entry: Any) -> int:
        if isinstance(entry, str):
            raise ValueError(entry)
        if isinstance(entry, bool) and self.is_mask:
            return int(entry)
        # Padding of unsigned numbers, as `samples_sql` takes it of Parquet files.
        is_beyond = isinstance(entry, int) and LARGEST_WHOLE < entry <= LARGEST_UNSIGNED
        return LARGEST_WHOLE if is_beyond else _whole(entry)


class Times:
    """Times as microseconds since 1970, or whole numbers as they are: what the first value of a file is.

    `kind` is one of these, the same for all files.
    """

    def __init__(self, is_typed: bool) -> None:
        self.is_typed = is_typed
        self.kind: str | None = None

    def __call__(self, value: Any) -> int:
        kind, number = self._read(value)
        if self.kind is None:
            self.kind = kind
        if self.kind != kind:
            raise ValueError(value)
        return number

    def _read(self, value: Any) -> tuple[str, int]:
        if not isinstance(value, str) or (not self.is_typed and WHOLE.fullmatch(value)):
            return "whole", _whole(value)
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            return "time", (moment - EPOCH) // timedelta(microseconds=1)
        return "zoned time", (moment - EPOCH.replace(tzinfo=UTC)) // timedelta(microseconds=1)
