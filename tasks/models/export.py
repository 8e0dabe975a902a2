"""A checkpoint as a folder that loads anywhere: weights, tokenizer, preprocessing, labels, code, ONNX, model card.

Invariant: every byte of the checkpoint and the data set that goes into the folder was hashed there, and is what the
run's manifest states. `files.json`, written last, has the SHA-256 of each file. The folder is whole or not there.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage.checkpoints.checkpoints import CheckpointFile, FoundCheckpoint, describe_file, load_checkpoint
from storage.checkpoints.reading import holding
from storage.checkpoints.results import find_calibration
from storage.datasets import DatasetManifest, dataset_key, load_dataset
from storage.errors import ConfigurationError, CorruptObjectError, ObjectUnreadableError
from storage.folders import write_folder
from storage.objects.digests import sha256_of_file
from storage.objects.readable import reading
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.config.changes import read_stored
from tasks.config.template import render_configuration
from tasks.configuration.run import RunConfig
from tasks.data.tokenizer import TOKENIZER_FILE
from tasks.models.card import render_card
from tasks.models.choice import choose_checkpoint
from tasks.models.description import describe_inputs, describe_labels, describe_model
from tasks.models.provenance import describe_metrics, describe_provenance
from training.export.onnx_file import require_libraries
from training.export.standalone.holdfast_inputs import PREPROCESSING_FILE
from training.export.standalone.holdfast_model import (
    CALIBRATION_FILE,
    FILES_FILE,
    LABELS_FILE,
    MODEL_FILE,
    MODEL_FORMAT,
)
from training.models import whole_weights
from training.models.source import source_of

KIND = "holdfast model"
_Read = TypeVar("_Read")
METRICS_FILE, PROVENANCE_FILE, CONFIGURATION_FILE, CARD_FILE = (
    "metrics.json",
    "provenance.json",
    "configuration.toml",
    "README.md",
)


@dataclass(frozen=True)
class Source:
    """What is exported: a checkpoint of a run, and the data set that it was trained on."""

    store: Store
    state: RunState
    config: RunConfig
    record: CheckpointRecord
    found: FoundCheckpoint
    dataset: DatasetManifest


def export_run(store: Store, run: str, choice: str, out: Path, with_onnx: bool, overwrite: bool) -> dict[str, Any]:
    """Write the folder `out`; what was exported, JSON-able.

    Raises `ConfigurationError`, `RunMissingError`, `CorruptObjectError` for a damaged checkpoint or data set, and
    `StoreError`: what was there before is then still there.
    """
    _require_folder(out, overwrite)
    if with_onnx:
        require_libraries()
    with holding(Manifest(store, run), lambda state: choose_checkpoint(state, choice)) as (state, record):
        source = _open_source(store, state, record)
        write_folder(out.absolute(), lambda folder: _fill(folder, source, with_onnx))
    return {"run": run, "out": str(out), "step": record.step, "metric": record.metric, "checkpoint": record.path}


def is_export(folder: Path) -> bool:
    """Whether a folder was written by `export_run`, of whatever version."""
    try:
        stated = json.loads((folder / FILES_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(stated, dict) and stated.get("kind") == KIND


def _require_folder(out: Path, overwrite: bool) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_symlink() and is_export(out):
        if overwrite:
            return
        raise ConfigurationError(
            f"{out} is an exported model already. Give --overwrite to replace it, or another folder. Nothing was "
            "changed."
        )
    raise ConfigurationError(
        f"{out} is there already, and is no exported model: expected a name that is free, or with --overwrite an "
        "earlier export. Give another folder. Nothing was changed."
    )


def _open_source(store: Store, state: RunState, record: CheckpointRecord) -> Source:
    config = RunConfig.model_validate(read_stored(state.config))
    dataset = load_dataset(store, state.dataset_digest, state.dataset_sha256)
    found = _checked(record, lambda: load_checkpoint(store, record.path, record.digest))
    return Source(store, state, config, record, found, dataset)


def _fill(folder: Path, source: Source, with_onnx: bool) -> None:
    store, found, dataset = source.store, source.found, source.dataset
    weights = _checked(source.record, lambda: _write_weights(store, found, folder))
    if dataset.tokenizer is not None:
        expected = CheckpointFile(num_bytes=dataset.tokenizer.num_bytes, sha256=dataset.tokenizer.sha256)
        _copy(store, dataset_key(dataset.digest, dataset.tokenizer.name), folder / TOKENIZER_FILE, expected)
    inputs, labels = describe_inputs(source.config.data, dataset), describe_labels(dataset)
    metrics = _checked(source.record, lambda: describe_metrics(store, source.record, found))
    provenance = describe_provenance(store, source.state, source.record, found, dataset)
    _write_json(folder / PREPROCESSING_FILE, inputs)
    _write_json(folder / LABELS_FILE, labels)
    _write_json(folder / MODEL_FILE, describe_model(source.config.model, dataset, weights))
    _write_json(folder / METRICS_FILE, metrics)
    _write_json(folder / PROVENANCE_FILE, provenance)
    calibration = find_calibration(store, source.record)
    if calibration is not None:
        _write_json(folder / CALIBRATION_FILE, calibration)
    _write_text(folder / CONFIGURATION_FILE, render_configuration(source.config, full=False))
    model = source_of(source.config.model)
    model.write_export(folder, dataset.target)
    if with_onnx:
        model.write_onnx(folder, dataset.target)
    _write_text(folder / CARD_FILE, render_card(inputs, labels, metrics, calibration, provenance, _hash_all(folder)))
    _write_json(folder / FILES_FILE, {"format": MODEL_FORMAT, "kind": KIND, "sha256": _hash_all(folder)})


def _write_weights(store: Store, found: FoundCheckpoint, folder: Path) -> list[str]:
    """All weights; the names of their files. Where the checkpoint has not all of them they are put together."""
    if not found.index.frozen:
        _copy_model(store, found, folder)
        return found.index.model_files
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _copy_model(store, found, Path(name))
        return whole_weights.write_whole(sorted(Path(name).iterdir()), folder)


def _copy_model(store: Store, found: FoundCheckpoint, folder: Path) -> None:
    for key, expected in found.model_files.items():
        _copy(store, key, folder / Path(key).name, expected)


def _copy(store: Store, key: str, path: Path, expected: CheckpointFile) -> None:
    """Raises `CorruptObjectError` unless the copy is what was once written."""
    with reading(store, key):
        shutil.copyfile(store.fetch(key), path)
    found = describe_file(path)
    if found != expected:
        raise CorruptObjectError(
            f"{store.address}/{key} was changed after it was written: {expected.num_bytes} bytes with SHA-256 "
            f"{expected.sha256[:16]}... expected, {found.num_bytes} bytes with {found.sha256[:16]}... found."
        )


def _checked(record: CheckpointRecord, read: Callable[[], _Read]) -> _Read:
    """What is read of the checkpoint; what is wrong with it comes with what to do."""
    try:
        return read()
    except (CorruptObjectError, ObjectUnreadableError) as error:
        raise type(error)(
            f"The checkpoint of step {record.step:,} cannot be exported: {error} Name another one with --checkpoint; "
            "`holdfast verify` says which are valid. Nothing was written."
        ) from error


def _hash_all(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
