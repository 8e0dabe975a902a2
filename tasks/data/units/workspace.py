"""What a unit of work has at hand, in whatever process and on whatever machine it runs.

Invariant: all that decides what a unit leaves is in the plan, which is kept with the results, and in the source; what
differs between machines (folders, threads, memory) changes no byte.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from platform import node
from queue import Empty, SimpleQueue

import duckdb

from storage.errors import ContractError
from storage.objects.addresses import open_store
from storage.objects.local_store import sync_file
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.data.database import open_database
from tasks.data.listing import find_source
from tasks.data.progress import OnProgress
from tasks.data.sources.columns import RowRange, SourceTable, named_columns
from tasks.data.sources.formats import PARQUET, format_of
from tasks.data.sources.samples_sql import samples_sql
from tasks.data.sources.source_file import SourceFile
from tasks.data.units.chunks import Chunk, chunks_from, limit_in_bytes, num_processes_within
from tasks.data.units.records import fetch_file, read_records, unit_name
from tasks.data.units.staging import Record, StagingArea, StoreStaging, load_record
from tasks.data.units.working_folders import folder_needed_again, working_folder

PLAN = "plan"
NUM_FILES_AT_A_TIME = 4


class Databases(contextlib.ExitStack):
    """Databases that stay open until the block is left, and serve one unit after another.

    To open one takes about 20 ms of a processor, as long as some units.
    """

    def __init__(self) -> None:
        super().__init__()
        self.idle: SimpleQueue[duckdb.DuckDBPyConnection] = SimpleQueue()


@dataclass(frozen=True)
class Workspace:
    """One process's view of a preparation.

    `folder` is for files under way; `brought` for what was read from the source and is needed again on this machine,
    until the data set is published: rows from a bucket, and rows whose tokens are decoded. DuckDB takes as many
    threads as there are processors if `threads` is None. `databases` are those of a process that does many units.
    `omits_rows` is not so on a machine where they would not be removed. `on_progress` is called with the share of a
    long unit that is done, in the process that shows it.
    """

    config: DataConfig
    store: Store
    staging: StagingArea
    folder: Path
    brought: Path
    files: list[SourceFile]
    table: SourceTable | None = None
    chunks: tuple[Chunk, ...] = ()
    threads: int | None = None
    databases: Databases | None = None
    omits_rows: bool = True
    on_progress: OnProgress | None = None

    @property
    def rows_of(self) -> SourceTable:
        """The source as a table, which must be known by now."""
        assert self.table is not None
        return self.table

    @contextlib.contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of this unit's own, which alone sees its views, to a database within its share of the memory."""
        if self.databases is None:
            with self._open_database() as connection:
                yield connection
            return
        try:
            database = self.databases.idle.get_nowait()
        except Empty:
            database = self.databases.enter_context(self._open_database())
        with database.cursor() as connection:
            yield connection
        self.databases.idle.put(database)  # not after an error, of which something may be left in it

    @contextlib.contextmanager
    def _open_database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        limit = self.config.memory_limit
        if self.threads is not None:
            share = limit_in_bytes(limit) // (2 * num_processes_within(self.config))
            limit = f"{share >> 20}MiB"
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as spill,
            open_database(limit, Path(spill)) as connection,
        ):
            if self.threads is not None:
                connection.execute(f"SET threads = {self.threads}")
            yield connection

    def row_ranges(self, index: int) -> Iterator[tuple[SourceTable, RowRange]]:
        """The row ranges of a chunk, each with the table in which its rows are on this machine."""
        table = self.rows_of
        files = list(table.files)
        with ThreadPoolExecutor(NUM_FILES_AT_A_TIME, thread_name_prefix="bring") as pool:
            brought = list(pool.map(lambda s: self._on_this_machine(files[s.file_index], s), self.chunks[index]))
        for row_range, file in zip(self.chunks[index], brought, strict=True):
            files[row_range.file_index] = file
            yield replace(table, files=list(files)), row_range

    def chunk_sql(self, index: int) -> str:
        """SQL of all rows of a chunk, as `samples_sql` gives them."""
        return " UNION ALL ".join(
            samples_sql(table, self.config, row_range) for table, row_range in self.row_ranges(index)
        )

    def settings(self, stage: str) -> Record:
        """What the units of a stage share, which was found out in the stages before."""
        return load_record(self.staging, settings_name(stage))

    def _on_this_machine(self, file: SourceFile, row_range: RowRange) -> SourceFile:
        if file.parquet is not None:
            return file
        self.brought.mkdir(parents=True, exist_ok=True)
        path = self.brought / f"{row_range.file_index}-{row_range.start}-{row_range.stop}.parquet"
        if path.exists():
            return replace(file, parquet=path)
        with tempfile.TemporaryDirectory(dir=self.brought) as folder:
            columns = {column for column, _ in named_columns(self.config)}
            found = file.bring(columns, Path(folder) / path.name, range(row_range.start, row_range.stop))
            sync_file(found.rows)  # it may be read after the machine has died
            found.rows.rename(path)
        return replace(file, parquet=path)


def settings_name(stage: str) -> str:
    """The name of the record in which a stage finds what its units share."""
    return f"settings-{stage}"


def plan_record(table: SourceTable, chunks: list[Chunk]) -> Record:
    """What another process needs to see the same table and chunks."""
    return {
        "files": [[file.name, *file.listed_as] for file in table.files],
        "num_rows": table.num_rows,
        "families": table.families,
        "has_row_numbers": table.has_row_numbers,
        "split_type": table.split_type,
        "chunks": [[list(row_range) for row_range in chunk] for chunk in chunks],
    }


@dataclass(frozen=True)
class Address:
    """From what any process opens the workspace of a preparation whose results are in the store.

    `config` is a `DataConfig` as JSON, `host` the name of the machine that will remove what is left in scratch.
    """

    config: str
    store: str
    cache: Path | None
    staging: str
    scratch: Path
    host: str = field(default_factory=node)

    @property
    def brought(self) -> Path:
        """Where rows that were brought from a bucket, and those whose tokens are decoded, are on this machine."""
        return folder_needed_again(self.scratch, self.staging)


# Until its end a process has the folders of the workspaces that it opened.
_entered = contextlib.ExitStack()


@lru_cache(maxsize=2)
def open_workspace(address: Address, is_read: bool) -> Workspace:
    """The workspace of a preparation. `is_read`: whether files that are not Parquet have been made that.

    Raises `ContractError` if the source is not what it was when the preparation began.
    """
    folder = _entered.enter_context(working_folder(address.scratch))
    config, store = DataConfig.model_validate_json(address.config), open_store(address.store, address.cache)
    staging = StoreStaging(store, address.staging)
    files = find_source(config)
    omits_rows = address.host == node()
    workspace = Workspace(config, store, staging, folder, address.brought, files, threads=1, omits_rows=omits_rows)
    if not is_read:
        return workspace
    plan = load_record(staging, PLAN)
    require_listed(files, plan)
    table = SourceTable(
        read_files(staging, files), plan["num_rows"], plan["families"], plan["has_row_numbers"], plan["split_type"]
    )
    chunks, databases = tuple(chunks_from(plan["chunks"])), _entered.enter_context(Databases())
    return replace(workspace, table=table, chunks=chunks, databases=databases)


def close_workspaces() -> None:
    """Remove the folders of the workspaces that this process has opened, and forget these."""
    open_workspace.cache_clear()
    _entered.close()


def read_files(staging: StagingArea, files: list[SourceFile]) -> list[SourceFile]:
    """The files, each with its rows as Parquet if its format is another one, which the units of `read` have made.

    Raises `CorruptObjectError` if one is not what was kept.
    """
    if format_of(files[0].name) == PARQUET:
        return files
    records = read_records(staging, "read", len(files))
    return [
        replace(file, parquet=fetch_file(staging, unit_name("read", index), record, read_name(index)))
        for index, (file, record) in enumerate(zip(files, records, strict=True))
    ]


def read_name(index: int) -> str:
    """The name of the Parquet file that was made of a file of another format."""
    return f"read-{index:06d}.parquet"


def require_listed(files: list[SourceFile], plan: Record) -> None:
    """Raise `ContractError` if the files are not those of the plan."""
    found = [[file.name, *file.listed_as] for file in files]
    if found != plan["files"]:
        known = {entry[0]: entry for entry in plan["files"]}
        changed = sorted(name for name, *rest in found if known.get(name) != [name, *rest])
        shown = f": {changed[0]} is another file" if changed else ""
        raise ContractError(
            f"The source changed since its preparation began{shown}. Nothing was published. "
            "Run again when no program writes to it any more."
        )
