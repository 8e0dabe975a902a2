"""CSV, TSV and JSON Lines, row by row.

Invariant: no row is dropped, mended or guessed. A line that is not what it must be is one error with file and line, and
neither a line nor a field is read beyond a limit, so that an opened quote does not take all memory.
"""

import contextlib
import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import IO, Any

from storage.errors import ContractError
from tasks.data.sources.formats import CSV, TSV, format_of, is_compressed
from tasks.data.sources.messages import REWRITE, broken_contract
from tasks.data.sources.source_file import SourceFile, cannot_read

DELIMITERS = {CSV: ",", TSV: "\t"}
CORRECT = "correct this line, or write the file again"
IN_QUOTES = "a value needs quotes around it where what separates the values, or an end of a line, is a part of it"
# Of the errors that Python's reader has for it.
CARRIAGE_RETURN = "new-line character seen in unquoted field"
QUOTING = {
    "unexpected end of data": "the end of the file within quotes",
    "expected after '\"'": "more text behind the quote that ends a field",
}
FROM_CR = "write the file again with other ends of lines: tr '\\r' '\\n' < FILE > NEW"
LONGEST_LINE_BYTES = 64 * 1024**2
NUM_NAMES_KEPT = 1000

# The line in which a row begins, and its values in the order of the columns that were asked for.
Row = tuple[int, list[Any]]


class Lines:
    """An iterator over the lines of a file as text. `number` is that of the line read last, from 1."""

    def __init__(self, file: SourceFile, raw: IO[bytes], opened: IO[bytes] | gzip.GzipFile) -> None:
        self.file = file
        self.raw = raw
        self.opened = opened
        self.number = 0
        self.num_bytes = 0

    @property
    def position(self) -> int:
        """How many bytes of the file, compressed or not, were read."""
        return self.raw.tell()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = self.opened.readline(LONGEST_LINE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.file, error) from error
        if not line:
            raise StopIteration
        self.number += 1
        self.num_bytes += len(line)
        if len(line) > LONGEST_LINE_BYTES:
            raise broken_line(self.file, self.number, f"at most {LONGEST_LINE_BYTES:,} bytes in a line", "more")
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            found = f"the byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
            raise broken_line(self.file, self.number, "text in UTF-8", found, _to_utf8(line)) from error


@contextlib.contextmanager
def open_lines(file: SourceFile) -> Iterator[Lines]:
    """The lines of a file, which may be compressed."""
    try:
        raw = file.stream()
    except OSError as error:
        raise cannot_read(file.location, error) from error
    with raw:
        if file.num_bytes == 0:
            raise broken_contract(f"The file {file.location} is empty.", "at least a line", "0 bytes", REWRITE)
        if is_compressed(file.name):
            with gzip.GzipFile(fileobj=raw) as opened:
                yield Lines(file, raw, opened)
        else:
            yield Lines(file, raw, raw)


def read_header(file: SourceFile) -> list[str]:
    """The names of the columns of a CSV or TSV file."""
    with open_lines(file) as lines:
        return CsvRows(lines).names


class CsvRows:
    """The rows of a CSV or TSV file; an empty field is None. `names` are the names of all its columns."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.records = _records(lines)
        self.names = _header(self.records, lines.file)

    def read(self, columns: list[str]) -> Iterator[Row]:
        """The values of these columns, which must be there, of every row."""
        num_fields, indices = len(self.names), [self.names.index(column) for column in columns]
        for line, record in self.records:
            if len(record) != num_fields:
                found = f"{len(record)} values"
                expected = f"{num_fields} values, as many as the header has"
                remedy = f"{CORRECT}; {IN_QUOTES}" if len(record) > num_fields else CORRECT
                raise broken_line(self.lines.file, line, expected, found, remedy)
            yield line, [record[index] or None for index in indices]


class JsonRows:
    """The rows of a file with a JSON object in each line. `names` are the keys that were met, not more than enough."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.names: list[str] = []

    def read(self, columns: list[str]) -> Iterator[Row]:
        """The values of these keys of every object; a key that is absent is None."""
        unseen = set(columns)
        for text in self.lines:
            if not text.strip():
                continue
            row = self._parse(text)
            if unseen:
                unseen.difference_update(row)
                self.names += [name for name in row if name not in self.names][: NUM_NAMES_KEPT - len(self.names)]
            yield self.lines.number, [row.get(column) for column in columns]

    def _parse(self, text: str) -> dict[str, Any]:
        line = self.lines.number
        expected = "a JSON object in each line"
        try:
            row = json.loads(text, object_pairs_hook=_with_each_key_once)
        except (ValueError, RecursionError) as error:
            # The library's place is that in this line, which it calls the first.
            cause = f"{error.msg}: character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise broken_line(
                self.lines.file, line, expected, f"what cannot be read ({cause}): {_start(text)}"
            ) from error
        if not isinstance(row, dict):
            raise broken_line(self.lines.file, line, expected, _start(text))
        return row


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def broken_line(file: SourceFile, line: int, expected: str, found: str, remedy: str = CORRECT) -> ContractError:
    """The error for a line that cannot be read."""
    return broken_contract(
        f"The file {file.location} is broken in line {line:,}.",
        expected,
        found,
        remedy,
    )


def _to_utf8(line: bytes) -> str:
    """How to convert a file with such a line: what its encoding is follows from a mark of it alone."""
    encoding = "UTF-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "WINDOWS-1252"
    is_sure = "" if encoding == "UTF-16" else ", if that is the encoding that it was written in"
    return f"{CORRECT}: iconv -f {encoding} -t UTF-8 FILE > NEW{is_sure}"


def _header(records: Iterator[tuple[int, list[str]]], file: SourceFile) -> list[str]:
    for _, names in records:
        return names
    expected = "the names of the columns in the first line"
    raise broken_contract(f"The file {file.location} has no header.", expected, "blank lines only", REWRITE)


def _records(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """The records of a file, which may go over several lines, with the line in which each begins; blank lines aside."""
    # The module has one limit for the whole process.
    csv.field_size_limit(LONGEST_LINE_BYTES)
    reader = csv.reader(lines, delimiter=DELIMITERS[format_of(lines.file.name)], strict=True)
    while True:
        line = lines.number + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if CARRIAGE_RETURN in str(error):
                expected, found = "lines that end with LF, or with CR and LF", "a CR alone in a field without quotes"
                raise broken_line(lines.file, line, expected, found, FROM_CR) from error
            expected = "fields with every quote closed, and a quote within quotes written twice"
            over = f", in a row that goes on to line {lines.number:,}" if lines.number > line else ""
            found = next((ours for theirs, ours in QUOTING.items() if theirs in str(error)), str(error))
            raise broken_line(lines.file, line, expected, f"{found}{over}") from error
        if record:
            yield line, record


def _unreadable(file: SourceFile, error: Exception) -> ContractError:
    return broken_contract(
        f"The file {file.location} cannot be read to its end.", "a complete file", str(error), REWRITE
    )


def _start(text: str) -> str:
    return repr(text.strip()[:60])
