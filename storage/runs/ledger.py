"""The ledger: which samples each step's microbatches were made of, as the model consumed them, in Parquet.

A part covers the steps between two checkpoints of one segment. It is put before the checkpoint that ends it, whose
index names it with its hash; and it names the part before it in the same way. So the promoted checkpoint vouches for
an unbroken chain back to step 0. Invariant: what counts is that chain. Parts outside it belong to steps that were
rolled back: they are void, and stay as evidence.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from storage.errors import CorruptObjectError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import require_format, sha256_of_file
from storage.objects.readable import reading
from storage.objects.store import Store, put_file_anew
from storage.runs.run_records import Record

LEDGER_FORMAT = 1
METADATA_KEY = b"holdfast"
# One row for each microbatch that went through the model: the indices of its samples in the training split, in the
# order in which they stood in the microbatch, and the MD5 of their ids, joined by ID_SEPARATOR, as they were read
# beside the tokens.
LEDGER_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("microbatch", pa.int32(), nullable=False),
        pa.field("rows", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("ids_md5", pa.binary(16), nullable=False),
    ]
)
ID_SEPARATOR = "\x1f"


class LedgerPart(Record):
    """Where a part is and what it must hash to; steps [first_step, end_step)."""

    key: str = Field(description="Relative to the store.")
    sha256: str
    num_bytes: int
    fence: int
    first_step: int
    end_step: int


class LedgerHeader(Record):
    """Metadata in a part's Parquet file."""

    format: int = LEDGER_FORMAT
    run: str
    fence: int
    first_step: int
    end_step: int
    world_size: int = Field(description="Ranks that consumed it; for people, the content does not depend on it.")
    dataset_digest: str
    previous: LedgerPart | None = Field(description="The part before; none at step 0.")
    skipped: list[tuple[int, int]] = Field(
        [],
        description="Positions [begin, end) of the run's order that rollbacks left out on the way to these steps.",
    )


def ledger_prefix(run: str) -> str:
    """What the keys of all parts of a run begin with."""
    return f"{RUNS_FOLDER}/{run}/ledger/"


def ledger_key(run: str, first_step: int, end_step: int, fence: int) -> str:
    """Key of a part: unique, since a fence passes each step once."""
    return f"{ledger_prefix(run)}{first_step:012d}-{end_step:012d}-f{fence:08d}.parquet"


def write_ledger_part(store: Store, header: LedgerHeader, table: pa.Table, folder: Path) -> LedgerPart:
    """Put a part; `table` has `LEDGER_SCHEMA`, ordered by step and microbatch. `folder` is scratch on local disk.

    A part of a save that was cut off under the same fence is replaced: no index names it.
    """
    path = folder / "ledger.parquet"
    described = table.cast(LEDGER_SCHEMA).replace_schema_metadata({METADATA_KEY: header.model_dump_json().encode()})
    # The samples of a window differ by less than its size: differences of neighbours take about two bytes each.
    encodings = {"rows.list.element": "DELTA_BINARY_PACKED", "step": "DELTA_BINARY_PACKED"}
    pq.write_table(
        described, path, compression="zstd", use_dictionary=False, column_encoding=encodings, write_page_checksum=True
    )
    key = ledger_key(header.run, header.first_step, header.end_step, header.fence)
    part = LedgerPart(
        key=key,
        sha256=sha256_of_file(path),
        num_bytes=path.stat().st_size,
        fence=header.fence,
        first_step=header.first_step,
        end_step=header.end_step,
    )
    put_file_anew(store, path, key)
    path.unlink()  # a store may have kept the very file: nothing may be written to it again
    return part


def fetch_ledger_part(store: Store, part: LedgerPart) -> Path:
    """A local path of a part whose bytes are those that were written.

    Raises `CorruptObjectError`, or `ObjectUnreadableError`.
    """
    with reading(store, part.key):
        path = store.fetch(part.key)
        found = sha256_of_file(path)
    if found != part.sha256:
        raise CorruptObjectError(
            f"{part.key} was changed after it was written: SHA-256 {part.sha256} expected, {found} found."
        )
    return path


def read_ledger_header(path: Path) -> LedgerHeader:
    """Metadata of a part.

    Raises `CorruptObjectError` if it cannot be read, `IncompatibleRunError` if a later version wrote it.
    """
    try:
        stated = (pq.read_schema(path).metadata or {})[METADATA_KEY]
        require_format(stated, LEDGER_FORMAT, f"The ledger's part {path}")
        return LedgerHeader.model_validate_json(stated)
    except (OSError, pa.ArrowException, KeyError, ValidationError) as error:
        raise CorruptObjectError(f"{path} is not a part of a ledger.") from error


def require_ledger_to(store: Store, part: LedgerPart | None, step: int) -> None:
    """Check that `part` is as it was written, ends at `step` and goes on where the part before it ended.

    Raises `CorruptObjectError`.
    """
    if part is None:
        raise CorruptObjectError(f"The checkpoint of step {step} names no ledger of what was consumed.")
    header = read_ledger_header(fetch_ledger_part(store, part))
    before = header.previous.end_step if header.previous else 0
    if (header.end_step, header.first_step) != (step, before):
        raise CorruptObjectError(
            f"{part.key} covers steps {header.first_step} to {header.end_step}; the checkpoint is of step {step}, and "
            f"the part before ends at {before}."
        )


def walk_ledger(store: Store, head: LedgerPart | None) -> Iterator[tuple[LedgerPart, Path, LedgerHeader]]:
    """The parts that count, the newest first. Raises `CorruptObjectError` where the chain breaks."""
    part = head
    while part is not None:
        path = fetch_ledger_part(store, part)
        header = read_ledger_header(path)
        yield part, path, header
        part = header.previous
