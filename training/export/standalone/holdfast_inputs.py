"""From a user's columns to what the network takes: tokens, imputed and scaled numbers, indices of categories.

Invariant: a row becomes what the preparation of the training data, which works in SQL, would have made of it; and this
file imports torch, `tokenizers`, Python's own library and the file beside it alone, since an exported model has copies.
"""

import json
import math
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.export.standalone.holdfast_texts import beginnings, longest_token, together

PREPROCESSING_FILE = "preprocessing.json"
# Beyond this a number is no 32-bit float any more.
LARGEST_SCALED = 3.4028234663852886e38
# Whole numbers below it are written the same whether they arrive as integers or as floats.
LARGEST_WHOLE = 1e15
# How a missing text reads once it was turned into a text.
NAN_TEXTS = ("nan", "NaN")
# What preparation puts between two texts, which neither may have.
SEPARATOR = "\x1f"
Columns = Mapping[str, Sequence[Any]]


class InputError(ValueError):
    """A column is not what the model takes; `row` counts the rows that were given, None is the column as a whole."""

    def __init__(self, column: str, row: int | None, expected: str, found: str) -> None:
        where = "" if row is None else f", row {row:,}"
        super().__init__(f"Column {column!r}{where}: expected {expected}, found {found}.")
        self.column, self.row, self.expected, self.found = column, row, expected, found


@dataclass(frozen=True)
class Encoded:
    """N rows as the network takes them, but not padded."""

    tokens: list["array[int]"]  # [N] 32-bit ids
    numeric: Tensor  # [N, 2K] float32: scaled values, then is-missing flags
    categorical: Tensor  # [N, C] int64

    def __len__(self) -> int:
        return len(self.tokens)


def join(parts: Sequence[Encoded]) -> Encoded:
    """The rows of all parts, one after the other."""
    return Encoded(
        [ids for part in parts for ids in part.tokens],
        torch.cat([part.numeric for part in parts]),
        torch.cat([part.categorical for part in parts]),
    )


class Inputs:
    """The contents of an export's `preprocessing.json`; the tokenizer, where there is text, is in `folder` too."""

    def __init__(self, described: Mapping[str, Any], folder: Path) -> None:
        self.texts: list[str] = described["texts"]  # none, one, or two that the model reads together
        self.tokens: str | None = described["tokens"]
        self.attention_mask: str | None = described["attention_mask"]
        self.numeric: list[dict[str, Any]] = described["numeric"]
        self.categorical: list[dict[str, Any]] = described["categorical"]
        self.max_tokens: int = described["max_tokens"]
        self.truncates: bool = described["too_long"] == "truncate"
        self._adds_special_tokens: bool = described["adds_special_tokens"]
        self._vocabulary_size: int = described["vocabulary_size"]
        self._missing, self._unseen = described["missing_index"], described["unseen_index"]
        first = described["first_vocabulary_index"]
        self._indices = [{name: first + i for i, name in enumerate(c["vocabulary"])} for c in self.categorical]
        self._tokenizer = None if not self.texts else _load_tokenizer(folder / described["tokenizer"])
        self._token_characters = 0 if self._tokenizer is None else longest_token(self._tokenizer)

    @property
    def columns(self) -> list[str]:
        """Names of all columns that a row must have; None, or NaN, is a missing value of a metadata column."""
        body = [*self.texts, *(name for name in (self.tokens, self.attention_mask) if name is not None)]
        return [*body, *(column["name"] for column in self.numeric + self.categorical)]

    def encode(self, columns: Columns) -> Encoded:
        """Columns of N values each, by their names; others are left out. Raises `InputError`."""
        for name in self.columns:
            if name not in columns:
                raise InputError(name, None, "a column of this name", f"the columns {', '.join(columns) or 'none'}")
        return Encoded(self._encode_body(columns), self._scale(columns), self._index(columns))

    def _encode_body(self, columns: Columns) -> list["array[int]"]:
        if self.texts:
            found = self._encode_texts([columns[column] for column in self.texts])
        else:
            assert self.tokens is not None, "a model reads text or tokens"
            masks = None if self.attention_mask is None else columns[self.attention_mask]
            found = self._take_tokens(self.tokens, columns[self.tokens], masks)
        return [self._shorten(row, ids) for row, ids in enumerate(found)]

    def _encode_texts(self, given: Sequence[Sequence[Any]]) -> Iterable["array[int]"]:
        """Of each row the texts of all columns together."""
        for column, texts in zip(self.texts, given, strict=True):
            for row, text in enumerate(texts):
                _require_text(column, row, text)
        assert self._tokenizer is not None, "loaded where there is text"
        rows = given[0]
        if len(given) == 2:
            cleaned = [[text.replace(SEPARATOR, " ") for text in texts] for texts in given]
            rows = list(zip(*cleaned, strict=True))
        if self._adds_special_tokens and self.truncates:
            self._tokenizer.enable_truncation(self.max_tokens)  # what stands at the end of a text is kept
        elif self.truncates:
            rows = beginnings(rows, self._token_characters, self.max_tokens)
        for part in together(rows):
            for encoding in self._tokenizer.encode_batch_fast(part, add_special_tokens=self._adds_special_tokens):
                yield array("i", encoding.ids)

    def _take_tokens(self, column: str, rows: Sequence[Any], masks: Sequence[Any] | None) -> Iterable["array[int]"]:
        expected = f"whole numbers from 1 to {self._vocabulary_size - 1}, at least one; 0 is padding"
        for row, given in enumerate(rows):
            kept = given if masks is None or given is None else self._unmasked(row, given, masks[row])
            try:
                ids = array("i", kept)
            except (TypeError, OverflowError) as error:  # not a list, not all whole numbers, or far too large ones
                raise InputError(column, row, expected, _shown(kept)) from error
            if len(ids) == 0 or min(ids) < 1 or max(ids) >= self._vocabulary_size:
                found = f"ids from {min(ids)} to {max(ids)}" if ids else "no token"
                raise InputError(column, row, expected, found)
            yield ids

    def _unmasked(self, row: int, ids: Sequence[Any], mask: Any) -> list[Any]:
        if mask is None or len(mask) != len(ids) or any(value not in (0, 1) for value in mask):
            expected = f"{len(ids)} numbers, each 0 or 1, as {self.tokens!r} has {len(ids)}"
            raise InputError(str(self.attention_mask), row, expected, _shown(mask))
        return [token for token, is_kept in zip(ids, mask, strict=True) if is_kept]

    def _shorten(self, row: int, ids: "array[int]") -> "array[int]":
        if len(ids) <= self.max_tokens:
            return ids
        if not self.truncates:
            expected = f"at most {self.max_tokens} tokens, for the model was trained to refuse longer rows"
            raise InputError(" and ".join(self.texts) or str(self.tokens), row, expected, f"{len(ids)} tokens")
        return ids[: self.max_tokens]

    def _scale(self, columns: Columns) -> Tensor:
        """[N, 2K]: in 64 bits up to the last step, as the preparation has it."""
        read = [_read_numbers(column["name"], columns[column["name"]]) for column in self.numeric]
        values = [_scaled(column, numbers) for column, numbers in zip(self.numeric, read, strict=True)]
        flags = [[float(number is None) for number in numbers] for numbers in read]
        return _stacked([*values, *flags], torch.float32, self._count(columns))

    def _index(self, columns: Columns) -> Tensor:
        found = []
        for column, indices in zip(self.categorical, self._indices, strict=True):
            names = map(category_name, columns[column["name"]])
            found.append([self._missing if name is None else indices.get(name, self._unseen) for name in names])
        return _stacked(found, torch.int64, self._count(columns))

    def _count(self, columns: Columns) -> int:
        return len(columns[self.columns[0]])


def category_name(value: Any) -> str | None:
    """A category as the preparation names it; None if it is missing. 3.0 and 3 are one category."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return None
    return str(int(number)) if number.is_integer() and abs(number) < LARGEST_WHOLE else repr(number)


def read_inputs(folder: Path) -> Inputs:
    """The inputs of an exported model."""
    return Inputs(json.loads((folder / PREPROCESSING_FILE).read_text(encoding="utf-8")), folder)


def _load_tokenizer(path: Path) -> Any:
    # Not at the top: a model that reads token ids needs no such library.
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("This model reads text and needs the library tokenizers: pip install tokenizers") from error

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True  # a text that says [PAD] means these five characters
    tokenizer.no_truncation()  # a pretrained model's may come with lengths of its own
    tokenizer.no_padding()
    return tokenizer


def _require_text(column: str, row: int, text: Any) -> None:
    if not isinstance(text, str) or text in NAN_TEXTS or not any(map(_is_visible, text)):
        raise InputError(column, row, "a text with something to see", _shown(text))


def _is_visible(character: str) -> bool:
    return not character.isspace() and unicodedata.category(character)[0] not in "ZC"


def _read_numbers(column: str, values: Sequence[Any]) -> list[float | None]:
    numbers: list[float | None] = []
    for row, value in enumerate(values):
        if isinstance(value, str | bytes | list):
            raise InputError(column, row, "a number, or None if it is missing", _shown(value))
        number = math.nan if value is None else float(value)
        numbers.append(None if math.isnan(number) else number)
    return numbers


def _scaled(column: Mapping[str, Any], numbers: list[float | None]) -> list[float]:
    median, mean, deviation = column["median"], column["mean"], column["standard_deviation"]
    scaled = [((median if number is None else number) - mean) / deviation for number in numbers]
    for row, value in enumerate(scaled):
        if not abs(value) <= LARGEST_SCALED:
            raise InputError(column["name"], row, "a finite number", _shown(numbers[row]))
    return scaled


def _stacked(columns: list[list[Any]], kind: torch.dtype, num_rows: int) -> Tensor:
    """[N, columns], also where there are none."""
    if not columns:
        return torch.zeros(num_rows, 0, dtype=kind)
    return torch.stack([torch.tensor(column, dtype=kind) for column in columns], dim=1)


def _shown(value: Any) -> str:
    text = "none (null)" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
