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
from functools import partial
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
from tasks.config.load import configure
from tasks.config.template import render_configuration
from tasks.configuration.run import RunConfig
from tasks.data.tokenizer import TOKENIZER_FILE
from tasks.models.card import render_card
from tasks.models.choice import choose_checkpoint
from tasks.models.description import describe_inputs, describe_labels, describe_model
from tasks.models.own_code import require_factory, require_same_module, stored_values
from tasks.models.provenance import describe_metrics, describe_provenance
from tasks.reporting.best import headline_name
from training.export.onnx_file import require_libraries
from training.export.standalone.holdfast_inputs import PREPROCESSING_FILE
from training.export.standalone.holdfast_model import (
    CALIBRATION_FILE,
    FILES_FILE,
    LABELS_FILE,
    MODEL_FILE,
    MODEL_FORMAT,
)
from training.model_configuration import ModuleConfig
from training.models import whole_weights
from training.models.source import source_of

KIND, ADAPTER_KIND = "holdfast model", "holdfast adapter"
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


def export_run(
    store: Store,
    run: str,
    choice: str,
    out: Path,
    with_onnx: bool,
    overwrite: bool,
    adapter: bool = False,
    factory: str | None = None,
) -> dict[str, Any]:
    """Write the folder `out`; what was exported, JSON-able. `adapter`: without the model that it was trained on.

    `factory` says where the user's module is, if it is one.

    Raises `ConfigurationError`, `RunMissingError`, `CorruptObjectError` for a damaged checkpoint or data set, and
    `StoreError`: what was there before is then still there.
    """
    _require_folder(out, overwrite)
    if with_onnx and not adapter:
        require_libraries()
    with holding(Manifest(store, run), lambda state: choose_checkpoint(state, choice)) as (state, record):
        source = _open_source(store, state, record, factory)
        fill = _fill_adapter if adapter else partial(_fill, with_onnx=with_onnx)
        write_folder(out.absolute(), lambda folder: fill(folder, source))
    return {
        "run": run, "out": str(out), "step": record.step, "metric": record.metric,
        "metric_name": headline_name(state), "checkpoint": record.path,
    }  # fmt: skip


def is_export(folder: Path) -> bool:
    """Whether a folder is a model that was written by `export_run`, of whatever version."""
    return bool(_kind_of(folder) == KIND)


def _kind_of(folder: Path) -> Any:
    try:
        stated = json.loads((folder / FILES_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return stated.get("kind") if isinstance(stated, dict) else None


def _require_folder(out: Path, overwrite: bool) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_symlink() and _kind_of(out) in (KIND, ADAPTER_KIND):
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


def _open_source(store: Store, state: RunState, record: CheckpointRecord, factory: str | None) -> Source:
    values = stored_values(state)
    if factory is not None:
        values["model"] = values["model"] | {"factory": factory}
    require_factory(values, state.run)
    config = configure(RunConfig, values, f"configuration of run {state.run!r}")
    require_same_module(config)
    dataset = load_dataset(store, state.dataset_digest, state.dataset_sha256)
    found = _checked(record, lambda: load_checkpoint(store, record.path, record.digest))
    return Source(store, state, config, record, found, dataset)


def _fill(folder: Path, source: Source, with_onnx: bool) -> None:
    dataset, model = source.dataset, source_of(source.config.model)
    weights = _checked(source.record, lambda: _write_weights(source, folder))
    described = _describe(folder, source)
    _write_json(folder / MODEL_FILE, describe_model(source.config.model, dataset, weights))
    model.write_export(folder, dataset.target)
    if with_onnx:
        model.write_onnx(folder, dataset.target)
    _seal(folder, KIND, described, source.config)


def _fill_adapter(folder: Path, source: Source) -> None:
    """What peft loads, and what the model takes and gives; no code, since that needs the whole model."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _checked(source.record, lambda: _copy_model(source.store, source.found, Path(name)))
        weights = sorted(Path(name).iterdir())
        adapter = source_of(source.config.model).write_adapter(weights, folder, source.dataset.target)
    _seal(folder, ADAPTER_KIND, _describe(folder, source), source.config, adapter)


@dataclass(frozen=True)
class _Described:
    """What the model takes and gives, how good it is and where it comes from, as the files of the folder have it."""

    inputs: dict[str, Any]
    labels: dict[str, Any]
    metrics: dict[str, Any]
    calibration: dict[str, Any] | None
    provenance: dict[str, Any]


def _describe(folder: Path, source: Source) -> _Described:
    """Write what every export has beside its weights."""
    store, found, dataset = source.store, source.found, source.dataset
    if dataset.tokenizer is not None:
        expected = CheckpointFile(num_bytes=dataset.tokenizer.num_bytes, sha256=dataset.tokenizer.sha256)
        _copy(store, dataset_key(dataset.digest, dataset.tokenizer.name), folder / TOKENIZER_FILE, expected)
    inputs, labels = describe_inputs(source.config.data, dataset), describe_labels(dataset)
    metrics = _checked(source.record, lambda: describe_metrics(store, source.record, found))
    provenance = describe_provenance(store, source.state, source.record, found, dataset)
    _write_json(folder / PREPROCESSING_FILE, inputs)
    _write_json(folder / LABELS_FILE, labels)
    _write_json(folder / METRICS_FILE, metrics)
    _write_json(folder / PROVENANCE_FILE, provenance)
    calibration = find_calibration(store, source.record)
    if calibration is not None:
        _write_json(folder / CALIBRATION_FILE, calibration)
    _write_text(folder / CONFIGURATION_FILE, render_configuration(source.config, full=False))
    return _Described(inputs, labels, metrics, calibration, provenance)


def _seal(folder: Path, kind: str, about: _Described, config: RunConfig, adapter: dict[str, Any] | None = None) -> None:
    """Write the card, and the hashes of all files, last."""
    card = render_card(
        about.inputs, about.labels, about.metrics, about.calibration, about.provenance, _hash_all(folder), adapter,
        _own_code(config),
    )  # fmt: skip
    _write_text(folder / CARD_FILE, card)
    _write_json(folder / FILES_FILE, {"format": MODEL_FORMAT, "kind": kind, "sha256": _hash_all(folder)})


def _own_code(config: RunConfig) -> dict[str, str] | None:
    """How the user's own code is imported, where the model is of it."""
    if not isinstance(config.model, ModuleConfig):
        return None
    reference = config.model.reference
    return {
        "module": reference.path.stem if reference.is_file else reference.place,
        "function": reference.function,
    }


def _write_weights(source: Source, folder: Path) -> list[str]:
    """All weights; the names of their files. Where the checkpoint has not all of them they are put together."""
    found = source.found
    if not found.index.frozen:
        _copy_model(source.store, found, folder)
        return found.index.model_files
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _copy_model(source.store, found, Path(name))
        return whole_weights.write_whole(sorted(Path(name).iterdir()), folder, source_of(source.config.model))


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
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
