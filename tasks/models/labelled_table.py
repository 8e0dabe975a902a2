"""A table with labels that a run was not trained on, as a data set that its model can be evaluated on.

Invariant: what becomes of a row is what became of the run's rows: the run's contract, tokenizer, statistics,
vocabularies and classes. Nothing is learned from the table, and nothing is written outside the folder for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from storage.datasets import DATASET_FORMAT, SPLITS, DatasetManifest, dataset_sha256, publish_dataset, read_dataset_file
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.configuration.split import SplitConfig
from tasks.console.announce import warn
from tasks.data.contract.result import find_contract_result
from tasks.data.contract.rules import SHORTEN
from tasks.data.contract.violations import require_rules_kept
from tasks.data.failures import blamed_on_changes, explained_failures
from tasks.data.identity.copies import warn_of_files_known
from tasks.data.identity.fingerprints import ensure_unchanged, fingerprint_files, read_inputs
from tasks.data.labels import labels_called
from tasks.data.listing import list_source
from tasks.data.pipeline import Preparation
from tasks.data.progress import run_plainly
from tasks.data.rare_classes import Counts, treated_sql
from tasks.data.readers.check import check_columns
from tasks.data.remarks.remarks import find_rare_labels
from tasks.data.rule import OUTSIDE
from tasks.data.sources.columns import inspect_files
from tasks.data.sources.formats import PARQUET, format_of
from tasks.data.sources.messages import broken_contract
from tasks.data.split import TEST, Assignment
from tasks.data.sql import only_row
from tasks.data.statistics import require_scalable
from tasks.data.tokenizer import TOKENIZER_FILE
from tasks.data.units.checking import fetch_extract, find_repeats, measured_in, open_extract
from tasks.data.units.staging import FolderStaging
from tasks.data.units.texts import keep_tokenizer
from tasks.data.units.work import OneByOne
from tasks.data.units.workspace import Databases, Workspace

SPLIT = SPLITS[TEST]
SETTING = "--source"  # where its address was typed
# By the problem of a rule. The contract's own advice is to change the configuration, of which a model learns nothing.
OWN_ADVICE = {
    OUTSIDE: "correct these labels or leave the rows out: the run's model knows no others",
    "token ids out of range": "correct these rows in what tokenised the texts: the run's model knows no other ids",
}
OWN_SHORTEN = "leave these rows out, or give --set data.too_long=truncate: the first tokens of such a row are kept"


@dataclass(frozen=True)
class LabelledTable:
    """The data set in a store of its own: all rows are in the split `SPLIT`."""

    store: str
    digest: str
    sha256: str


def prepare_table(
    source: str, config: DataConfig, dataset: DatasetManifest, store: Store, folder: Path
) -> LabelledTable:
    """Prepare the table at `source` in the empty `folder`; `config` and `dataset`, in `store`, are the run's.

    Raises `ConfigurationError` and `ContractError` for what the user can put right, a label that the run does not know
    among it, and `StoreError`.
    """
    # Rows are not assigned: which column would do that, and whether it is there, does not matter.
    rare = find_rare_labels(find_contract_result(store, dataset))
    labels = labels_called(dataset.target.classes, rare, config)
    config = _as_trained(config, dataset, [*labels, *rare]).model_copy(
        update={"source": source, "split": SplitConfig()}
    )
    files, left_out = list_source(config, SETTING)
    own = LocalStore(folder / "store")
    with blamed_on_changes(files), explained_failures(config, folder), _own_advice(), Databases() as databases:
        table = inspect_files(files, config) if format_of(files[0].name) == PARQUET else None
        if table is None:
            check_columns(files, config)
        fingerprints = fingerprint_files(files, folder)
        warn_of_files_known(files, fingerprints, dataset)
        inputs = read_inputs(config, files, fingerprints) | {"like": dataset.digest}
        # Rows that `check` leaves decoded would be in the split that their ids give them.
        workspace = Workspace(
            config, own, FolderStaging(folder / "units"), folder, folder / "source", files, omits_rows=False,
            databases=databases,
        )  # fmt: skip
        preparation = Preparation(workspace, None, inputs, None, run_plainly, OneByOne(), left_out)
        preparation.cut(table or preparation.read()[0])
        num_rows = _require_contract(preparation, dataset, rare)
        _write(preparation, dataset, store, Assignment(labels, [], [0, 0, num_rows], str(TEST), rare))
        ensure_unchanged(files)
    return LabelledTable(own.address, preparation.digest, dataset_sha256(own, preparation.digest))


def _as_trained(config: DataConfig, dataset: DatasetManifest, labels: Sequence[str]) -> DataConfig:
    """What the model is fixed to; and any share of missing values is an input to it."""
    limits: dict[str, Any] = {"classes": list(dict.fromkeys(labels)), "class_names": None}
    limits |= {"max_tokens": dataset.max_tokens, "max_missing_fraction": 1.0, "expectations": None}
    limits["weight"] = None  # metrics are not weighted
    if dataset.tokenizer is None:
        limits["vocabulary_size"] = dataset.vocabulary_size
    return config.model_copy(update=limits)


@contextmanager
def _own_advice() -> Iterator[None]:
    """A block in which a row that is too long comes with what helps here."""
    try:
        yield
    except ContractError as error:
        raise ContractError(str(error).replace(SHORTEN, OWN_SHORTEN)) from error


def _require_contract(preparation: Preparation, dataset: DatasetManifest, rare: Counts) -> int:
    """Raise `ContractError` for the first rule that the table breaks; the number of rows to evaluate on."""
    workspace = preparation.workspace
    records = preparation.do("check", len(workspace.chunks), "check")
    extract = fetch_extract(workspace.staging, records)
    with preparation.database("contract") as connection:
        open_extract(connection, extract)
        repeats = find_repeats(connection, workspace, extract.order_keys) if workspace.config.id else None
        require_rules_kept(workspace.rows_of, workspace.config, measured_in(records), repeats, OWN_ADVICE.get)
        _require_scalable(connection, dataset)
        return _count_left(connection, rare, workspace)


def _count_left(connection: duckdb.DuckDBPyConnection, rare: Counts, workspace: Workspace) -> int:
    """The rows without those of classes that the run leaves out, logged. Raises `ContractError` if none is."""
    num_rows, rows = workspace.rows_of.num_rows_total, treated_sql("samples", list(rare), workspace.config)
    (num_left,) = only_row(connection, f"SELECT count(*) FROM {rows}")
    if num_left == 0:
        raise broken_contract(
            f"Column {workspace.config.target_name!r} has no row to evaluate on.",
            "rows of the classes that the run's model knows",
            f'{num_rows:,} rows of classes that the run leaves out (data.rare_classes = "drop")',
            "name a table with other rows",
        )
    if num_left < num_rows:
        warn(f"Left out: {num_rows - num_left:,} of {num_rows:,} rows, of classes that the run leaves out too.")
    return int(num_left)


def _require_scalable(connection: duckdb.DuckDBPyConnection, dataset: DatasetManifest) -> None:
    for i, column in enumerate(dataset.numeric):
        require_scalable(column, only_row(connection, f"SELECT min(n{i}), max(n{i}) FROM samples"))


def _write(preparation: Preparation, dataset: DatasetManifest, store: Store, assignment: Assignment) -> None:
    """Write the rows as the run's model sees them, and publish them in the table's own store."""
    workspace = preparation.workspace
    if dataset.tokenizer is not None:
        keep_tokenizer(workspace.staging, _copy_tokenizer(dataset, store, workspace.folder))
    buckets, _ = preparation.assign(assignment, dataset.numeric, dataset.categorical)
    splits, _ = preparation.write(assignment, buckets, dataset.vocabulary_size)
    changes: dict[str, Any] = {
        "format": DATASET_FORMAT,
        "digest": preparation.digest,
        "inputs": preparation.inputs,
        "splits": splits,
    }
    changes |= dict.fromkeys(("tokenizer", "contract", "weight"))
    publish_dataset(workspace.store, dataset.model_copy(update=changes))


def _copy_tokenizer(dataset: DatasetManifest, store: Store, folder: Path) -> Path:
    """The run's, in a file that may be moved. Raises `CorruptObjectError` if it is not as it was written."""
    assert dataset.tokenizer is not None
    path = folder / TOKENIZER_FILE
    path.write_bytes(read_dataset_file(store, dataset, dataset.tokenizer))
    return path
