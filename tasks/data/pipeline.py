"""The user's files into a published data set: check, assign, learn, tokenise, shuffle, publish.

Each part is cut into units of work (`units`), which may be done by many processes.
Invariant: a data set is published under the digest of its inputs once all its files are in the store, and the same
inputs are never prepared twice. Before the data have passed every check, no file of the data set is written.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import duckdb

from storage.datasets import (
    SPLITS,
    CategoricalColumn,
    DatasetManifest,
    FileRecord,
    NumericColumn,
    SplitRecord,
    dataset_key,
    find_dataset,
    named_by_content,
    publish_dataset,
    remove_other_files,
)
from storage.objects.digests import canonical_json, digest_of, sha256_of_file
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.console.announce import announce
from tasks.data.contract.label_advice import advise_on_labels
from tasks.data.contract.result import CONTRACT_FILE, find_contract_result
from tasks.data.contract.violations import require_rules_kept
from tasks.data.database import open_database
from tasks.data.expectations.background import Validation
from tasks.data.expectations.drift import Described
from tasks.data.failures import blamed_on_changes, explained_failures
from tasks.data.identity.copies import require_no_copies
from tasks.data.identity.fingerprints import ensure_unchanged, fingerprint_files, read_inputs
from tasks.data.identity.identities import identities_of, keep_identities
from tasks.data.listing import describe_source, list_source
from tasks.data.progress import OnContract, OnProgress, RunPart, ignore_contract, run_plainly
from tasks.data.readers.check import check_columns
from tasks.data.readers.conversion import require_one_kind_of_times, require_readable
from tasks.data.remarks.remarks import measure_remarks
from tasks.data.sources.columns import SourceTable, inspect_files
from tasks.data.sources.formats import PARQUET, format_of
from tasks.data.split import Assignment, assign_samples, describe_target, describe_weight, with_class_counts
from tasks.data.statistics import measure_categorical, measure_numeric, measure_weight
from tasks.data.tokenizer import TOKENIZER_FILE, copy_given, load_tokenizer, train_tokenizer
from tasks.data.units.assigning import AssignSettings, bits_of_buckets, require_short_enough
from tasks.data.units.bucket_files import TABLE_NAME, Buckets, gather_tables
from tasks.data.units.checking import fetch_extract, find_repeats, measured_in, open_extract
from tasks.data.units.chunks import bytes_of_chunk, cut, limit_beside_processes
from tasks.data.units.opening import open_workspace, versions_of_libraries
from tasks.data.units.reading import TIMES
from tasks.data.units.records import find_records, read_records
from tasks.data.units.sharding import require_all_rows, shard_units, shards_together, splits_in
from tasks.data.units.staging import Record, StagingArea, StoreStaging, begin_staging, put_again, remove_staging
from tasks.data.units.texts import LEARNED, fetch_tokenizer, keep_tokenizer, read_texts, texts_settings
from tasks.data.units.work import Engine, OneByOne, do_unit
from tasks.data.units.working_folders import remove_abandoned, working_folder
from tasks.data.units.workspace import PLAN, Address, Databases, Workspace, plan_record, read_files, settings_name
from tasks.text import count_of, size

INTERRUPT_SECONDS = 0.1
Statistics = tuple[Assignment, list[NumericColumn], list[CategoricalColumn]]


def prepare_dataset(
    config: DataConfig,
    store: Store,
    scratch: Path,
    on_progress: OnProgress | None = None,
    run_part: RunPart = run_plainly,
    engine: Engine | None = None,
    cache: Path | None = None,
    reference: Described | None = None,
    on_contract: OnContract = ignore_contract,
) -> DatasetManifest:
    """The published data set for this configuration and these files: the one that is there, or a new one.

    `on_progress` is called with a phase (fingerprint, read, check, learn, tokenise or assign, shard) and the share of
    it that is done; `run_part` runs the parts, one after the other, and `engine` the units of a part where there is
    much to do: this process by default. `cache` is where processes elsewhere keep copies of what is in a bucket. Drift
    is that from `reference`, and `on_contract` is called with the result of the data's contract. Raises
    `ConfigurationError` or `ContractError` for what the user can put right, `StoreError` for a full disk or store, or a
    bucket that cannot be read.
    """
    listed_at, validation = time.time(), Validation(config, reference)
    files, left_out = list_source(config)
    with blamed_on_changes(files):
        table: SourceTable | None = None
        if format_of(files[0].name) == PARQUET:
            table = inspect_files(files, config)
        else:
            check_columns(files, config)
        fingerprints = fingerprint_files(files, scratch, on_progress)
        require_no_copies(files, fingerprints, table.num_rows if table else None)
        identities = identities_of(files, fingerprints, listed_at)
        inputs = read_inputs(config, files, fingerprints)
        manifest = find_dataset(store, digest_of(inputs))
        contract = None if manifest is None else find_contract_result(store, manifest)
        if manifest is not None and validation.has_covered(contract):
            in_splits = sum(split.num_rows for split in manifest.splits.values())
            announce(describe_source(files, contract["rows"] if contract else in_splits, left_out))
        else:
            validation.require_valid()
            with working_folder(scratch) as folder, explained_failures(config, scratch), Databases() as databases:
                workspace, address = open_workspace(config, store, scratch, folder, inputs, files, cache)
                workspace = replace(workspace, on_progress=on_progress, databases=databases)
                engine = engine or OneByOne()
                preparation = Preparation(
                    workspace, address, inputs, on_progress, run_part, engine, left_out, validation
                )
                manifest = preparation.run(table)
    on_contract(validation.found_of(manifest, store))
    keep_identities(store, manifest.digest, identities)
    return manifest


class Preparation:
    """One data set under way: what its parts share.

    With an `address` what units leave is kept in the store, and any process may do them.
    """

    def __init__(
        self,
        workspace: Workspace,
        address: Address | None,
        inputs: Record,
        on_progress: OnProgress | None,
        run_part: RunPart,
        engine: Engine,
        left_out: Sequence[str] = (),
        validation: Validation | None = None,
    ) -> None:
        self.workspace = workspace
        self.address = address
        self.config = workspace.config
        self.inputs = inputs
        self.on_progress = on_progress
        self.run_part = run_part
        self.engine = engine
        self.left_out = left_out  # what is beside the files and is not read
        self.bytes_per_row = 0.0
        self.measuring: Future[tuple[Statistics, str]] | None = None
        self.validation = validation or Validation(workspace.config)

    @property
    def digest(self) -> str:
        return digest_of(self.inputs)

    @property
    def staging(self) -> StagingArea:
        return self.workspace.staging

    def run(self, table: SourceTable | None) -> DatasetManifest:
        """All parts in turn; the data set that was published. `table` is None where files are converted first."""
        if self.address is None:
            return self._run(table)
        begin_staging(StoreStaging(self.workspace.store, self.address.staging), time.time())
        try:
            return self.engine.attend(lambda: self._run(table))
        except Exception:
            # Another process may have prepared the same and, once it was published, removed what both had kept: files
            # under this one's hands too.
            published = find_dataset(self.workspace.store, self.digest)
            if published is None or self.validation.is_owed:
                raise
            remove_staging(self.workspace.store, self.address.staging)
            return published
        finally:
            remove_abandoned(self.address.scratch)  # of processes that have ended by now

    def _run(self, table: SourceTable | None) -> DatasetManifest:
        if table is None:
            table = self.run_part("read", self.read)
        self.cut(table)
        assignment, numeric, categorical = self._look_at_all_rows()
        self.validation.begin()
        published = find_dataset(self.workspace.store, self.digest)
        if published is not None:  # by another process, or before the user's suite was given
            self.run_part("expectations", self.validation.wait)
            return self._leave_to(published)
        vocabulary_size = self.config.vocabulary_size
        if self.config.text:
            vocabulary_size = self.run_part("tokenise", lambda: self._find_tokens(assignment))
        buckets = self.run_part("assign", lambda: self.assign(assignment, numeric, categorical))
        contract = self.run_part("expectations", self.validation.wait)
        published = find_dataset(self.workspace.store, self.digest)
        if published is not None:
            return self._leave_to(published)
        splits = self.run_part("shard", lambda: self.write(assignment, buckets, vocabulary_size))
        manifest = DatasetManifest(
            digest=self.digest,
            inputs=self.inputs,
            versions=versions_of_libraries(),
            target=describe_target(assignment, self.config),
            vocabulary_size=vocabulary_size,
            max_tokens=self.config.max_tokens,
            row_group_rows=self.config.row_group_rows,
            numeric=numeric,
            categorical=categorical,
            splits=with_class_counts(splits, assignment.class_counts),
            tokenizer=self._put(TOKENIZER_FILE, fetch_tokenizer(self.staging)) if self.config.text else None,
            contract=self._put_json(CONTRACT_FILE, contract),
            weight=describe_weight(assignment, self.config),
        )
        ensure_unchanged(self.workspace.files)
        return self._leave_to(publish_dataset(self.workspace.store, manifest))

    def read(self) -> tuple[SourceTable, str]:
        """The rows of files of another format than Parquet, as Parquet."""
        files = self.workspace.files
        require_readable(files, self.config)
        records = self.do("read", len(files), "read")
        require_one_kind_of_times(files, [record[TIMES] for record in records], self.config)
        table = inspect_files(read_files(self.staging, files), self.config)
        return table, f"{table.num_rows_total:,} rows in {count_of(len(files), 'file')}."

    def cut(self, table: SourceTable) -> None:
        """Take the rows in chunks, which units do one by one, and log which files they are of."""
        announce(describe_source(table.files, table.num_rows_total, self.left_out))
        chunks, num_bytes = cut(table, self.config)
        self.bytes_per_row = num_bytes / table.num_rows_total
        self.workspace = replace(self.workspace, table=table, chunks=tuple(chunks))
        self.staging.keep(PLAN, plan_record(table, chunks), {})

    def _look_at_all_rows(self) -> Statistics:
        """How the rows are assigned to splits, the statistics of the training split, and the measures of all rows.

        These are taken beside what the contract asks of all rows, each on a core and with a database of its own.
        """
        with self.database("statistics") as connection, ThreadPoolExecutor(1, "statistics") as beside:
            try:
                measuring = self.run_part("contract", lambda: self._check(connection, beside))
                return self.run_part("split and statistics", measuring.result)
            except BaseException:
                self._interrupt_measuring(connection)
                raise

    def _interrupt_measuring(self, connection: duckdb.DuckDBPyConnection) -> None:
        """End the statistics: again and again, since an interruption between two queries is lost."""
        while self.measuring is not None and not wait([self.measuring], INTERRUPT_SECONDS).done:
            connection.interrupt()

    def _check(
        self, connection: duckdb.DuckDBPyConnection, beside: ThreadPoolExecutor
    ) -> tuple[Future[tuple[Statistics, str]], str]:
        records = self.do("check", len(self.workspace.chunks), "check")
        measured, extract = measured_in(records), fetch_extract(self.staging, records)
        self.num_text_bytes = sum(found.num_text_bytes for found in measured)
        open_extract(connection, extract)
        self.measuring = measuring = beside.submit(self._measure, connection)
        with self.database("contract") as own:
            open_extract(own, extract)
            repeats = find_repeats(own, self.workspace, extract.order_keys) if self.config.id else None
            advice = partial(advise_on_labels, connection=own, config=self.config)
            require_rules_kept(self.workspace.rows_of, self.config, measured, repeats, advice)
        return measuring, f"{self.workspace.rows_of.num_rows_total:,} rows measured against every rule."

    def _measure(self, connection: duckdb.DuckDBPyConnection) -> tuple[Statistics, str]:
        assignment = assign_samples(connection, self.workspace.rows_of, self.config)
        assignment = replace(assignment, mean_weight=measure_weight(connection, self.config))
        remarks = measure_remarks(connection, assignment, self.config)
        numeric = measure_numeric(connection, self.config)
        categorical = measure_categorical(connection, self.config)
        num_rows = self.workspace.rows_of.num_rows_total
        self.validation.measure(connection, assignment, numeric, categorical, remarks, num_rows)
        rows = ", ".join(f"{count:,} {name}" for name, count in zip(SPLITS, assignment.num_rows, strict=True))
        return (assignment, numeric, categorical), f"Samples: {rows}; {len(assignment.classes)} classes."

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A DuckDB of this process within the configured memory, beside other processes in a folder of its own."""
        if self.address is None:
            with self.workspace.database() as connection:
                yield connection
            return
        limit = limit_beside_processes(self.config)
        folder = self.workspace.folder / name
        folder.mkdir(exist_ok=True)
        with open_database(limit, folder) as connection:
            yield connection

    def _find_tokens(self, assignment: Assignment) -> tuple[int, str]:
        """Learn the tokenizer, or take the one that is given; the number of its tokens."""
        given = self.config.tokenizer
        if self.staging.find(LEARNED) is None and given is not None:
            keep_tokenizer(self.staging, copy_given(given, self.workspace.folder))
        elif self.staging.find(LEARNED) is None:
            bytes_per_text = self.num_text_bytes / self.workspace.rows_of.num_rows_total
            self._share("texts", texts_settings(assignment, bytes_per_text))
            texts = read_texts(self.staging, self.do("texts", len(self.workspace.chunks), "learn"))
            path = self.workspace.folder / TOKENIZER_FILE
            train_tokenizer(texts, self.config.vocabulary_size).save(str(path))
            keep_tokenizer(self.staging, path)
        vocabulary_size = load_tokenizer(fetch_tokenizer(self.staging)).get_vocab_size()
        origin = "learned on the training split" if given is None else "those of the pretrained model"
        return vocabulary_size, f"{vocabulary_size:,} tokens, {origin}."

    def assign(
        self, assignment: Assignment, numeric: list[NumericColumn], categorical: list[CategoricalColumn]
    ) -> tuple[Buckets, str]:
        """Give each row its split, tokens and numbers, in buckets by its key in the order; what, and in words."""
        num_rows = sum(assignment.num_rows)
        bits = bits_of_buckets(assignment, self.config, self.bytes_per_row, bytes_of_chunk(self.config))
        settings = AssignSettings(
            assignment.split_sql,
            assignment.classes,
            numeric,
            categorical,
            list(assignment.rare),
            bits,
            assignment.mean_weight,
        )
        self._share("assign", settings.as_record())
        records = self.do("assign", len(self.workspace.chunks), "tokenise" if self.config.text else "assign")
        require_short_enough(records, num_rows, self.config)
        tables, path = [record["table"] for record in records], self.workspace.folder / TABLE_NAME
        buckets = gather_tables(self.staging, tables, bits, path, bytes_of_chunk(self.config))
        require_all_rows(buckets.rows_of_splits, assignment.num_rows)
        return buckets, f"{num_rows:,} rows in {count_of(len(buckets.rows), 'bucket')}."

    def write(
        self, assignment: Assignment, buckets: Buckets, vocabulary_size: int
    ) -> tuple[dict[str, SplitRecord], str]:
        """Write the shards of all splits; what they are, and in words."""
        num_together = shards_together(self.config, self.bytes_per_row, bytes_of_chunk(self.config))
        units = shard_units(assignment.num_rows, num_together, self.config)
        shared: Record = {"digest": self.digest, "num_rows": assignment.num_rows, "num_together": num_together}
        shared |= {"buckets": asdict(buckets), "vocabulary_size": vocabulary_size}
        self._share("shard", shared, {TABLE_NAME: self.workspace.folder / TABLE_NAME})
        splits = splits_in(self.do("shard", len(units), "shard"), units, assignment.num_rows)
        files = [shard for split in splits.values() for shard in split.shards]
        return splits, f"{count_of(len(files), 'shard')} with {size(sum(file.num_bytes for file in files))}."

    def _share(self, stage: str, settings: Record, files: dict[str, Path] | None = None) -> None:
        self.staging.keep(settings_name(stage), settings, files or {})

    def do(self, stage: str, num_units: int, phase: str) -> list[Record]:
        """Do those units of a stage that are not done; the records of all."""
        todo = [index for index, found in enumerate(find_records(self.staging, stage, num_units)) if found is None]
        num_done = num_units - len(todo)

        def note() -> None:
            nonlocal num_done
            num_done += 1
            self.validation.raise_what_failed()
            if self.on_progress is not None:
                self.on_progress(phase, num_done / num_units)

        if self.address is not None:
            self.engine.run(self.address, stage, todo, note)
        else:
            for index in todo:
                do_unit(self.workspace, stage, index)
                note()
        return read_records(self.staging, stage, num_units)

    def _put_json(self, name: str, content: Record) -> FileRecord:
        path = self.workspace.folder / name
        path.write_bytes(canonical_json(content))
        return self._put(name, path)

    def _put(self, name: str, path: Path) -> FileRecord:
        """Put a file of the data set that has no rows."""
        sha256 = sha256_of_file(path)
        name = named_by_content(name, sha256)
        put_again(self.workspace.store, path, dataset_key(self.digest, name))
        return FileRecord(name=name, num_bytes=path.stat().st_size, sha256=sha256)

    def _leave_to(self, published: DatasetManifest) -> DatasetManifest:
        """Remove what preparations left that is not in the published data set: this one's own, or others' before."""
        store = self.workspace.store
        remove_other_files(store, published)
        if self.address is not None:
            remove_staging(store, self.address.staging)
            shutil.rmtree(self.workspace.brought, ignore_errors=True)
        return published
