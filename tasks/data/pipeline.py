"""The user's files into a published data set: check, deal, learn, tokenise, shuffle, publish.

Invariant: a data set is published under the digest of its inputs once all its files are in the store, and the same
inputs are never prepared twice. Before the data have passed every check, nothing is written to the store.
"""

import contextlib
import errno
import fcntl
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
from tokenizers import Tokenizer

from storage.datasets import (
    SPLITS,
    CategoricalColumn,
    DatasetManifest,
    FileRecord,
    NumericColumn,
    SplitRecord,
    Target,
    dataset_key,
    publish_dataset,
)
from storage.errors import ConfigurationError, StoreError
from storage.objects.digests import canonical_json, digest_of, sha256_of_file
from storage.objects.store import Store
from tasks.configuration import DataConfig
from tasks.data.class_order import find_prepared, with_class_order
from tasks.data.contract_result import CONTRACT_FILE, sum_up
from tasks.data.database import open_database, parquet_sql
from tasks.data.identity.fingerprints import ensure_unchanged, fingerprint_files, read_inputs
from tasks.data.identity.identities import identities_of, keep_identities
from tasks.data.progress import OnProgress
from tasks.data.readers.check import check_columns
from tasks.data.readers.conversion import convert_files
from tasks.data.readers.fetching import fetch_columns
from tasks.data.shard import ordered_sql, prepared_sql, put_again, stage_tokens, write_shards
from tasks.data.sources.columns import SourceTable, inspect_files, samples_sql
from tasks.data.sources.contract import check_contract
from tasks.data.sources.files import find_files
from tasks.data.sources.formats import PARQUET, format_of
from tasks.data.sources.source_file import SourceFile
from tasks.data.split import HASH_VALUES, TRAIN, Dealt, deal_samples
from tasks.data.statistics import measure_categorical, measure_numeric
from tasks.data.tokenizer import texts_of, train_tokenizer
from tasks.pages.words import count_of, size
from tasks.places import scratch_error

TOKENIZER_TEXTS = 200_000
TOKENIZER_FILE = "tokenizer.json"
BATCH_ROWS = 4096
Value = TypeVar("Value")
LIBRARIES = ("duckdb", "pyarrow", "tokenizers", "great-expectations", "numpy")


class RunPart(Protocol):
    """Runs one part of the preparation: its name, and what returns its value and one sentence about it."""

    def __call__(self, name: str, work: Callable[[], tuple[Value, str]]) -> Value: ...


def run_plainly(name: str, work: Callable[[], tuple[Value, str]]) -> Value:
    """Just that."""
    return work()[0]


def prepare_dataset(
    config: DataConfig,
    store: Store,
    scratch: Path,
    on_progress: OnProgress | None = None,
    run_part: RunPart = run_plainly,
) -> DatasetManifest:
    """The published data set for this configuration and these files: the one that is there, or a new one.

    `on_progress` is told a phase (fingerprint, read, check, tokenise, shard; read only where the files are not Parquet
    or are in a bucket) and the share of it that is done; `run_part` runs the parts, one after the other. Raises
    `ConfigurationError` or `ContractError` for what the user can put right, `StoreError` for a full disk or store, or a
    bucket that cannot be read.
    """
    listed_at = time.time()
    files = find_files(config.source)
    table: SourceTable | None = None
    if format_of(files[0].name) == PARQUET:
        table = inspect_files(files, config)
    else:
        check_columns(files, config)
    fingerprints = fingerprint_files(files, scratch, on_progress)
    identities = identities_of(files, fingerprints, listed_at)
    inputs = read_inputs(config, files, fingerprints)
    published = find_prepared(store, inputs, config)
    if published is not None:
        keep_identities(store, published.digest, identities)
        return published
    with (
        working_folder(scratch) as folder,
        open_database(config.memory_limit, folder) as connection,
        _explained(config, scratch),
    ):
        if table is None or any(file.parquet is None for file in files):
            table = run_part("read", lambda: _read(files, config, folder, on_progress))
        preparation = _Preparation(config, store, folder, connection, table, inputs, on_progress, run_part)
        manifest = preparation.run()
    keep_identities(store, manifest.digest, identities)
    return manifest


def _read(
    files: list[SourceFile], config: DataConfig, folder: Path, on_progress: OnProgress | None
) -> tuple[SourceTable, str]:
    """The rows of files that DuckDB does not read where they are, as Parquet that lives as long as the folder."""
    bring = fetch_columns if format_of(files[0].name) == PARQUET else convert_files
    table = inspect_files(bring(files, config, folder / "source", on_progress), config)
    return table, f"{table.num_rows_total:,} rows in {count_of(len(files), 'file')}."


@contextlib.contextmanager
def working_folder(scratch: Path) -> Iterator[Path]:
    """A folder for files under way, removed at the end; those of killed processes are removed at the start.

    A lock beside the folder tells the living from the dead: the kernel releases it when its process ends.
    """
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(scratch)
        folder = scratch / f"prepare-{uuid.uuid4().hex}"
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise scratch_error(scratch, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)


class _Preparation:
    """One data set under way: what its steps share."""

    def __init__(
        self,
        config: DataConfig,
        store: Store,
        folder: Path,
        connection: duckdb.DuckDBPyConnection,
        table: SourceTable,
        inputs: dict[str, Any],
        on_progress: OnProgress | None,
        run_part: RunPart,
    ) -> None:
        self.config = config
        self.store = store
        self.folder = folder
        self.connection = connection
        self.table = table
        self.inputs = inputs
        self.on_progress = on_progress
        self.run_part = run_part

    @property
    def digest(self) -> str:
        """Final once the labels are known; nothing is written before."""
        return digest_of(self.inputs)

    def run(self) -> DatasetManifest:
        self.connection.execute(f"CREATE TEMP VIEW samples AS {samples_sql(self.table, self.config)}")
        contract = self.run_part("contract", self._check)
        dealt, numeric, categorical = self.run_part("split and statistics", self._measure)
        self.inputs = with_class_order(self.inputs, dealt.classes, self.config)
        relation = prepared_sql(self.config, dealt.classes, numeric)
        tokenizer: Tokenizer | None = None
        if self.config.text:
            relation, tokenizer = self.run_part("tokenise", lambda: self._tokenise(relation, dealt))
        splits, tokenizer_record = self.run_part("shard", lambda: self._write(relation, dealt, tokenizer))
        manifest = DatasetManifest(
            digest=self.digest,
            inputs=self.inputs,
            versions={name: version(name) for name in LIBRARIES},
            target=Target(
                kind=self.config.kind,
                column=self.config.label,
                classes=dealt.classes,
                class_counts=dealt.class_counts,
            ),
            vocabulary_size=tokenizer.get_vocab_size() if tokenizer is not None else self.config.vocabulary_size,
            max_tokens=self.config.max_tokens,
            row_group_rows=self.config.row_group_rows,
            numeric=numeric,
            categorical=categorical,
            splits=splits,
            tokenizer=tokenizer_record,
            contract=self._put_json(CONTRACT_FILE, contract),
        )
        ensure_unchanged(self.table.files)
        self._publish(manifest)
        return manifest

    def _check(self) -> tuple[dict[str, Any], str]:
        result = check_contract(self.connection, self.table, self.config, self.on_progress)
        return result, sum_up(result)

    def _measure(self) -> tuple[tuple[Dealt, list[NumericColumn], list[CategoricalColumn]], str]:
        dealt = deal_samples(self.connection, self.table, self.config)
        numeric = measure_numeric(self.connection, self.config)
        categorical = measure_categorical(self.connection, self.config)
        rows = ", ".join(f"{count:,} {name}" for name, count in zip(SPLITS, dealt.num_rows, strict=True))
        return (dealt, numeric, categorical), f"Samples: {rows}; {len(dealt.classes)} classes."

    def _tokenise(self, relation: str, dealt: Dealt) -> tuple[tuple[str, Tokenizer], str]:
        tokenizer = self._train_tokenizer(dealt)
        staged = self._stage(relation, tokenizer)
        return (
            staged,
            tokenizer,
        ), f"{tokenizer.get_vocab_size():,} tokens, learned on the training split."

    def _train_tokenizer(self, dealt: Dealt) -> Tokenizer:
        """Learn from the training texts, or from those of them whose id has a small hash where there are many."""
        share = min(1.0, TOKENIZER_TEXTS / dealt.num_rows[TRAIN])
        chosen = f"md5_number_lower('tokenizer:{self.config.seed}:' || id) <= {int(share * (HASH_VALUES - 1))}"
        query = f"SELECT text FROM dealt WHERE split = {TRAIN} AND {chosen}"
        reader = self.connection.sql(query).to_arrow_reader(BATCH_ROWS)
        return train_tokenizer(texts_of(reader), self.config.vocabulary_size)

    def _stage(self, relation: str, tokenizer: Tokenizer) -> str:
        path = self.folder / "staged.parquet"
        stage_tokens(
            self.connection, relation, tokenizer, self.config, path, self.table.num_rows_total, self.on_progress
        )
        return f"SELECT * FROM {parquet_sql([path])}"

    def _write(
        self, relation: str, dealt: Dealt, tokenizer: Tokenizer | None
    ) -> tuple[tuple[dict[str, SplitRecord], FileRecord | None], str]:
        reader = self.connection.sql(ordered_sql(relation, self.config.seed)).to_arrow_reader(BATCH_ROWS)
        splits = write_shards(
            reader, self.store, self.digest, self.config, self.folder, dealt.num_rows, self.on_progress
        )
        files = [shard for split in splits.values() for shard in split.shards]
        written = f"{count_of(len(files), 'shard')} with {size(sum(file.num_bytes for file in files))}."
        return (splits, self._put_tokenizer(tokenizer) if tokenizer is not None else None), written

    def _put_tokenizer(self, tokenizer: Tokenizer) -> FileRecord:
        path = self.folder / TOKENIZER_FILE
        tokenizer.save(str(path))
        sha256 = sha256_of_file(path)
        put_again(self.store, path, dataset_key(self.digest, TOKENIZER_FILE), sha256)
        return FileRecord(name=TOKENIZER_FILE, num_rows=0, num_bytes=path.stat().st_size, sha256=sha256)

    def _put_json(self, name: str, content: dict[str, Any]) -> FileRecord:
        path = self.folder / name
        path.write_bytes(canonical_json(content))
        sha256 = sha256_of_file(path)
        num_bytes = path.stat().st_size
        put_again(self.store, path, dataset_key(self.digest, name), sha256)
        return FileRecord(name=name, num_rows=0, num_bytes=num_bytes, sha256=sha256)

    def _publish(self, manifest: DatasetManifest) -> None:
        """Publish, after what an interrupted preparation with other libraries may have left is gone."""
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        files = ("dataset.json", TOKENIZER_FILE, CONTRACT_FILE, *(shard.name for shard in shards))
        named = {dataset_key(self.digest, name) for name in files}
        for key in list(self.store.list_keys(dataset_key(self.digest))):
            if key not in named:
                self.store.delete(key)
        publish_dataset(self.store, manifest)


@contextlib.contextmanager
def _explained(config: DataConfig, scratch: Path) -> Iterator[None]:
    """Turn running out of memory or disk into errors that say what to do."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ConfigurationError(
            f"Preparing the data takes more memory than data.memory_limit = {config.memory_limit!r}, or more disk than "
            f"{scratch} has: {_first_line(error)} Raise data.memory_limit, or free some disk."
        ) from error
    except duckdb.IOException as error:
        raise StoreError(
            f"Cannot read {config.source} or write working files in {scratch}: {_first_line(error)} "
            "Check that the files are still there and that the disk has space left, then run again."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise scratch_error(scratch, error) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _remove_abandoned(scratch: Path) -> None:
    for folder in scratch.glob("prepare-*/"):
        with folder.with_suffix(".lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
