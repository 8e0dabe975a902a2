"""Rows whose tokens the unit `check` has decoded, for the unit `assign`: the source is decoded once.

Invariant: they are a copy, on this machine alone. Where they are missing or damaged, the source is read
again: but for time nothing depends on them. So they need no sync, and may be removed before what came of them is kept.
"""

import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from tasks.data.units.records import unit_name
from tasks.data.units.workspace import Workspace

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CRC = "rows_crc"


class _Summed(io.RawIOBase):
    """Writes to a file, and has the CRC-32 of what it wrote: all of it in memory once more would take time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self._file.write(data)


def leave_rows(workspace: Workspace, index: int, rows: pa.Table, folder: Path) -> int:
    """Leave a chunk's rows; the CRC-32 that the record of `check` states."""
    path = folder / "rows"
    with path.open("xb") as file:
        summed = _Summed(file)
        with pa.ipc.new_stream(summed, rows.schema) as writer:
            writer.write_table(rows)
    workspace.brought.mkdir(parents=True, exist_ok=True)
    path.rename(_path_of(workspace, index))
    return summed.crc


def take_rows(workspace: Workspace, index: int) -> pa.Table | None:
    """A chunk's rows as they were left, which are then gone; None if they are not what was left."""
    record, path = workspace.staging.find(unit_name("check", index)), _path_of(workspace, index)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)  # another preparation of the same may have taken them meanwhile
    if record is None or record.get(CRC) != zlib.crc32(data):
        return None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _path_of(workspace: Workspace, index: int) -> Path:
    return workspace.brought / f"rows-{index:06d}.arrow"
