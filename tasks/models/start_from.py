"""`train.start_from`: the first weights of a new run, brought into its own store before its manifest names them.

Invariant: a run needs its origin no more once it has begun.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from safetensors import safe_open

from storage.datasets import DatasetManifest, read_dataset_file
from storage.errors import ConfigurationError, CorruptObjectError
from storage.objects.store import Store
from storage.runs.addresses import find_target
from storage.runs.manifest import Manifest
from storage.runs.run_records import StartRecord
from tasks.config.changes import read_stored
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.models.description import describe_inputs, describe_labels, describe_model
from tasks.models.export import PROVENANCE_FILE, export_run, is_export
from tasks.models.start_files import put_start
from tasks.run_paths import RunPaths
from training.export.standalone.holdfast_inputs import PREPROCESSING_FILE
from training.export.standalone.holdfast_model import LABELS_FILE, MODEL_FILE, ModelFolderError, verify
from training.models.correspondence import Described
from training.models.source import source_of


def bring_first_weights(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths) -> StartRecord:
    """Copy the origin's weights into the run's folder; the manifest's record of them.

    Raises `ConfigurationError` if there is no such origin or its sizes differ, `CorruptObjectError` if it is damaged.
    """
    origin = config.train.start_from
    assert origin is not None
    run_paths.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run_paths.scratch, prefix="start-") as name:
        folder = _open(config, Path(name) / "origin")
        weights: list[str] = _read(folder, MODEL_FILE)["weights"]
        names = [name for file in weights for name in _tensor_names(folder / file)]
        new, found_there = _describe_run(config, dataset, run_paths.store), _describe_folder(folder)
        _require_kind(str(found_there.sizes["kind"]), config)
        found = source_of(config.model).correspond(found_there, new, names)
        provenance = _read(folder, PROVENANCE_FILE)
        announce(f"Starts from {origin}, step {provenance['step']:,}: takes over {', '.join(found.words)}.")
        files = [folder / name for name in weights]
        step, sha256 = provenance["step"], provenance["weights_sha256"]
        return put_start(files, found.copies, run_paths, origin, step, sha256, provenance)


def _open(config: RunConfig, exported: Path) -> Path:
    """The origin as a folder in the form of an export, every file as its files.json states."""
    origin, checkpoint = str(config.train.start_from), config.train.start_checkpoint
    folder = Path(origin)
    if not is_export(folder):
        store, run = find_target(origin)
        if run is None:
            raise ConfigurationError(
                f"train.start_from is {origin!r}: expected the address of a run, STORE/runs/NAME, or a folder that "
                "`holdfast export` wrote. Neither is there."
            )
        _require_kind(read_stored(Manifest(store, run).load_head().state.config)["model"]["kind"], config)
        export_run(store, run, checkpoint, exported, with_onnx=False, overwrite=False)
        folder = exported
    try:
        verify(folder)
    except ModelFolderError as error:
        raise CorruptObjectError(f"The model that train.start_from names is damaged. {error}") from error
    return folder


def _require_kind(found: str, config: RunConfig) -> None:
    """Raise `ConfigurationError` for an origin that is a model of another kind."""
    if found != config.model.kind:
        raise ConfigurationError(
            f"train.start_from is {config.train.start_from!r}, whose model is of the kind {found!r}, and this run's is "
            f"{config.model.kind!r}: no weight of the one means anything in the other. Take train.start_from out."
        )


def _describe_folder(folder: Path) -> Described:
    inputs = _read(folder, PREPROCESSING_FILE)
    tokens = None if inputs["tokenizer"] is None else _tokens((folder / inputs["tokenizer"]).read_bytes())
    return Described(inputs, _read(folder, LABELS_FILE), _read(folder, MODEL_FILE)["architecture"], tokens)


def _describe_run(config: RunConfig, dataset: DatasetManifest, store: Store) -> Described:
    sizes = describe_model(config.model, dataset, [])["architecture"]
    tokenizer = dataset.tokenizer
    tokens = None if tokenizer is None else _tokens(read_dataset_file(store, dataset, tokenizer))
    return Described(describe_inputs(config.data, dataset), describe_labels(dataset), sizes, tokens)


def _read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def _tensor_names(path: Path) -> list[str]:
    with safe_open(path, "np") as file:
        return list(file.keys())


def _tokens(tokenizer: bytes) -> dict[str, int]:
    """Token -> id, of a tokenizer.json of `tokenizers`."""
    content = json.loads(tokenizer)
    vocabulary: dict[str, int] = content["model"]["vocab"]
    return vocabulary | {token["content"]: token["id"] for token in content.get("added_tokens", [])}
