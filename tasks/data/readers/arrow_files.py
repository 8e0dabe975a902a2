"""Arrow IPC files, which Feather files of version 2 are, batch by batch.

Invariant: a file is complete, which its footer shows, and every batch was checked before it is used: Arrow itself
trusts the offsets in it.
"""

import contextlib
from collections.abc import Collection, Iterator

import pyarrow as pa

from storage.errors import ConfigurationError, ContractError
from tasks.data.sources.messages import REWRITE, broken_contract
from tasks.data.sources.source_file import SourceFile, cannot_read

MAGIC = b"ARROW1"
BEGINS_A_STREAM = b"\xff\xff\xff\xff"


@contextlib.contextmanager
def open_arrow_file(
    file: SourceFile, columns: Collection[str] = ()
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The columns of a file, or these of them, in its own order, and the batches of these. No other is read.

    Raises `ContractError` for a damaged file.
    """
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(file.open())
            reader = pa.ipc.open_file(source)
            if columns:
                chosen = [index for index, name in enumerate(reader.schema.names) if name in columns]
                reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=chosen))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, error) from error
        yield reader.schema, _batches(reader, file)


def read_arrow_schema(file: SourceFile) -> pa.Schema:
    """The columns of a file and their types."""
    with open_arrow_file(file) as (schema, _):
        return schema


def _batches(reader: pa.RecordBatchFileReader, file: SourceFile) -> Iterator[pa.RecordBatch]:
    for index in range(reader.num_record_batches):
        try:
            batch = reader.get_batch(index)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, error) from error
        yield batch


def _unreadable(file: SourceFile, error: Exception) -> ContractError | ConfigurationError:
    if isinstance(error, OSError) and error.errno is not None:  # Arrow's own of a damaged file have none
        return cannot_read(file.location, error)
    with contextlib.suppress(OSError), file.open() as opened:
        first = opened.read(len(MAGIC))
        if not first:
            return broken_contract(f"The file {file.location} is empty.", "a complete Arrow file", "0 bytes", REWRITE)
        if first.startswith(BEGINS_A_STREAM):
            return broken_contract(
                f"The file {file.location} cannot be read.",
                "an Arrow IPC file, which has a footer that shows that it is complete",
                "an Arrow stream",
                "write it as an IPC file (pyarrow.ipc.new_file), as Feather or as Parquet",
            )
        if first == MAGIC:
            found = f"an Arrow file that was cut off or damaged ({_first_line(error)})"
            return broken_contract(f"The file {file.location} cannot be read.", "a complete Arrow file", found, REWRITE)
    found = f"something that is not an Arrow IPC file ({_first_line(error)})"
    return broken_contract(f"The file {file.location} cannot be read.", "a complete Arrow file", found, REWRITE)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
