"""The ledger in the store: one unbroken chain back to step 0, of which no changed byte is missed."""

import hashlib
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import CorruptObjectError, IncompatibleRunError, ObjectUnreadableError
from storage.objects.local_store import LocalStore
from storage.runs.ledger import (
    LEDGER_SCHEMA,
    METADATA_KEY,
    LedgerHeader,
    LedgerPart,
    fetch_ledger_part,
    ledger_prefix,
    read_ledger_header,
    require_ledger_to,
    walk_ledger,
    write_ledger_part,
)

MICROBATCHES = 3


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def head(store: LocalStore, tmp_path: Path) -> LedgerPart:
    """The newest of three parts, of steps 0 to 4, 4 to 7 and 7 to 8."""
    part = None
    for fence, (first_step, end_step) in enumerate([(0, 4), (4, 7), (7, 8)], start=2):
        part = write_part(store, tmp_path, first_step, end_step, fence, previous=part)
    assert part is not None
    return part


def make_rows(first_step: int, end_step: int, microbatch_rows: int = 2) -> pa.Table:
    """Microbatches of some steps as an epoch in order would fill them."""
    microbatches = [(step, microbatch) for step in range(first_step, end_step) for microbatch in range(MICROBATCHES)]
    starts = [(step * MICROBATCHES + microbatch) * microbatch_rows for step, microbatch in microbatches]
    columns = {
        "step": [step for step, _ in microbatches],
        "microbatch": [microbatch for _, microbatch in microbatches],
        "rows": [list(range(start, start + microbatch_rows)) for start in starts],
        "ids_md5": [hashlib.md5(str(start).encode()).digest() for start in starts],
    }
    return pa.table(columns, schema=LEDGER_SCHEMA)


def write_part(
    store: LocalStore,
    folder: Path,
    first_step: int,
    end_step: int,
    fence: int,
    previous: LedgerPart | None = None,
    table: pa.Table | None = None,
) -> LedgerPart:
    header = LedgerHeader(
        run="run",
        fence=fence,
        first_step=first_step,
        end_step=end_step,
        world_size=fence,
        dataset_digest="d" * 64,
        previous=previous,
    )
    # A store may keep the very file that it is given: each part has a file of its own.
    own_folder = Path(tempfile.mkdtemp(dir=folder))
    return write_ledger_part(store, header, make_rows(first_step, end_step) if table is None else table, own_folder)


def test_a_part_comes_back_as_it_was_written(store: LocalStore, head: LedgerPart) -> None:
    path = fetch_ledger_part(store, head)
    assert (head.first_step, head.end_step, head.fence) == (7, 8, 4)
    assert head.num_bytes == path.stat().st_size
    assert head.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found = pq.read_table(path)
    assert found.schema.equals(LEDGER_SCHEMA)
    assert found.equals(make_rows(7, 8))


def test_duckdb_reads_a_part_as_it_stands(store: LocalStore, head: LedgerPart) -> None:
    path = fetch_ledger_part(store, head)
    query = f"SELECT step, microbatch, list_sum(rows), hex(ids_md5) FROM '{path}' ORDER BY step, microbatch"
    found = duckdb.execute(query).fetchall()
    expected = [
        (row["step"], row["microbatch"], sum(row["rows"]), row["ids_md5"]) for row in make_rows(7, 8).to_pylist()
    ]
    assert found == [(step, microbatch, total, digest.hex().upper()) for step, microbatch, total, digest in expected]


def test_the_chain_is_walked_from_the_newest_part_to_step_0(store: LocalStore, head: LedgerPart) -> None:
    walked = list(walk_ledger(store, head))
    assert [(part.first_step, part.end_step, part.fence) for part, _, _ in walked] == [(7, 8, 4), (4, 7, 3), (0, 4, 2)]
    for part, path, header in walked:
        assert (header.first_step, header.end_step, header.fence) == (part.first_step, part.end_step, part.fence)
        assert pq.read_table(path).column("step").unique().to_pylist() == list(range(part.first_step, part.end_step))
    assert walked[0][2].world_size == 4
    assert walked[-1][2].previous is None


def test_before_the_first_step_there_is_nothing_to_walk(store: LocalStore) -> None:
    assert list(walk_ledger(store, None)) == []


def test_a_part_that_was_rolled_back_stays_and_is_never_walked(
    store: LocalStore, head: LedgerPart, tmp_path: Path
) -> None:
    """A segment that was killed after its last promoted checkpoint left steps that others made again."""
    void = write_part(store, tmp_path, 8, 12, fence=5, previous=head)
    again = write_part(store, tmp_path, 8, 12, fence=6, previous=head)
    assert void.key != again.key
    assert void.key not in [part.key for part, _, _ in walk_ledger(store, again)]
    assert {void.key, again.key} < set(store.list_keys(ledger_prefix("run")))


def test_a_part_of_a_save_that_was_cut_off_is_replaced(store: LocalStore, head: LedgerPart, tmp_path: Path) -> None:
    cut_off = write_part(store, tmp_path, 8, 9, fence=4, previous=head, table=make_rows(8, 9, microbatch_rows=5))
    part = write_part(store, tmp_path, 8, 9, fence=4, previous=head)
    assert part.key == cut_off.key
    assert pq.read_table(fetch_ledger_part(store, part)).equals(make_rows(8, 9))
    with pytest.raises(CorruptObjectError, match="changed"):
        fetch_ledger_part(store, cut_off)


def test_a_flipped_byte_anywhere_in_the_chain_is_noticed(store: LocalStore, head: LedgerPart) -> None:
    for part, path, _ in list(walk_ledger(store, head)):
        original = path.read_bytes()
        for position in range(0, len(original), 13):
            path.write_bytes(original[:position] + bytes([original[position] ^ 0x10]) + original[position + 1 :])
            with pytest.raises(CorruptObjectError, match=f"{part.key} was changed"):
                list(walk_ledger(store, head))
        path.write_bytes(original)
    assert len(list(walk_ledger(store, head))) == 3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_missing_part_is_noticed_and_named(store: LocalStore, head: LedgerPart, place: int) -> None:
    part = list(walk_ledger(store, head))[place][0]
    store.delete(part.key)
    with pytest.raises(ObjectUnreadableError, match=f"{part.key} is missing"):
        list(walk_ledger(store, head))


def test_a_part_that_stands_in_for_another_is_noticed(store: LocalStore, head: LedgerPart) -> None:
    (_, newest, _), (part, older, _), _ = walk_ledger(store, head)
    older.write_bytes(newest.read_bytes())
    with pytest.raises(CorruptObjectError, match=f"{part.key} was changed"):
        list(walk_ledger(store, head))


def test_a_ledger_that_leads_to_a_checkpoints_step_is_enough_to_promote_it(store: LocalStore, head: LedgerPart) -> None:
    parts = [part for part, _, _ in walk_ledger(store, head)]
    assert [part.end_step for part in parts] == [8, 7, 4]
    for part in parts:
        require_ledger_to(store, part, part.end_step)  # raises what the tests below expect of others


@pytest.mark.parametrize("step", [7, 9])
def test_a_ledger_that_ends_at_another_step_is_refused(store: LocalStore, head: LedgerPart, step: int) -> None:
    with pytest.raises(CorruptObjectError, match=f"covers steps 7 to 8; the checkpoint is of step {step}"):
        require_ledger_to(store, head, step)


@pytest.mark.parametrize("first_step", [7, 9])
def test_a_part_that_overlaps_the_one_before_or_leaves_a_gap_is_refused(
    store: LocalStore, head: LedgerPart, tmp_path: Path, first_step: int
) -> None:
    part = write_part(store, tmp_path, first_step, 12, fence=5, previous=head)
    with pytest.raises(CorruptObjectError, match=f"covers steps {first_step} to 12.* the part before ends at 8"):
        require_ledger_to(store, part, 12)


def test_a_first_part_that_does_not_begin_at_step_0_is_refused(store: LocalStore, tmp_path: Path) -> None:
    part = write_part(store, tmp_path, 1, 4, fence=2)
    with pytest.raises(CorruptObjectError, match="the part before ends at 0"):
        require_ledger_to(store, part, 4)


def test_a_checkpoint_without_a_ledger_is_refused(store: LocalStore) -> None:
    with pytest.raises(CorruptObjectError, match="step 4 names no ledger"):
        require_ledger_to(store, None, 4)


@pytest.mark.parametrize("fields", [b'{"format": 9}', b'{"format": 2, "run": "run", "steps": [0, 1]}'])
def test_a_part_of_a_later_format_is_refused_whatever_is_in_it(tmp_path: Path, fields: bytes) -> None:
    pq.write_table(make_rows(0, 1).replace_schema_metadata({METADATA_KEY: fields}), tmp_path / "later.parquet")
    with pytest.raises(
        IncompatibleRunError, match=r"later\.parquet has format \d, this version of Holdfast reads format 1"
    ):
        read_ledger_header(tmp_path / "later.parquet")


@pytest.mark.parametrize("metadata", [None, {METADATA_KEY: b"{}"}, {METADATA_KEY: b"\xff"}, {b"other": b"{}"}])
def test_a_parquet_file_that_is_no_part_is_refused(tmp_path: Path, metadata: dict[bytes, bytes] | None) -> None:
    pq.write_table(make_rows(0, 1).replace_schema_metadata(metadata), tmp_path / "some.parquet")
    with pytest.raises(CorruptObjectError, match=r"some\.parquet is not a part of a ledger"):
        read_ledger_header(tmp_path / "some.parquet")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    with pytest.raises(CorruptObjectError, match="not a part"):
        read_ledger_header(tmp_path / "some.parquet")


def test_a_sample_takes_less_than_three_bytes(store: LocalStore, tmp_path: Path) -> None:
    """32 microbatches of 16 samples a step, drawn as the order does: from windows of 16 row groups of 512 rows."""
    generator = np.random.Generator(np.random.Philox(key=3))
    num_microbatches, microbatch_rows = 20_000, 16
    windows = 30_000_000 + generator.permuted(np.arange(8192 * 40).reshape(40, 8192), axis=1).reshape(-1)
    microbatches = windows[: num_microbatches * microbatch_rows].reshape(num_microbatches, microbatch_rows)
    columns = {
        "step": np.arange(num_microbatches) // 32,
        "microbatch": np.arange(num_microbatches) % 32,
        "rows": microbatches.tolist(),
        "ids_md5": [generator.bytes(16) for _ in range(num_microbatches)],
    }
    part = write_part(store, tmp_path, 0, 625, fence=2, table=pa.table(columns, schema=LEDGER_SCHEMA))
    assert part.num_bytes < 3 * microbatches.size
