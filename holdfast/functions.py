"""What the commands do, as functions: each starts the command of its name and returns what that prints with `--json`.

`run` is a configuration file, or the run's address STORE/runs/NAME. `settings` are fields of the configuration by
their dotted names, for instance {"train.steps": 500}, in place of what the file or the run has: a relative path in them
is taken from the working directory. All functions raise `HoldfastError` with the command's own message where it could
not do what it was asked to, and `KeyboardInterrupt` after Ctrl-C, once the command has ended in good order.
"""

import pathlib
import tempfile
from collections.abc import Mapping
from os import PathLike
from typing import Literal, cast

from holdfast.child import call
from holdfast.given import Model, flattened, name_of, source_of
from holdfast.results import (
    Audit,
    Evaluation,
    Export,
    Page,
    Prediction,
    PreparedData,
    RunList,
    RunResult,
    Status,
    StopRequest,
    Verification,
)

Path = str | PathLike[str]
Settings = Mapping[str, object] | None
DEFAULT_STORE = "holdfast-store"


def run(
    config: Path | Mapping[str, object],
    settings: Settings = None,
    model: Model | None = None,
    data: object = None,
) -> RunResult:
    """Train a run to its end, or go on with one that exists; where it stands then, and where its report is.

    Args:
        config: Configuration file (TOML), or its fields: {"run": "requests", "data": {"label": "topic", ...}, ...}.
        settings: Fields in place of those.
        model: A module of your own: "my_models.py:build", or a function that a module of yours has.
        data: In place of data.source: a path, or a table of pandas or Arrow, which is written as Parquet below
            .holdfast in the working directory, named by its content.

    The same call goes on after an interruption of any kind, in a notebook the same cell. Progress is shown on stderr,
    as the command shows it. A run that `stop` ended raises `HoldfastError` with kind RunStoppedError.
    """
    factory, folders = (None, []) if model is None else name_of(model)
    given: dict[str, object] = {} if factory is None else {"model.kind": "module", "model.factory": factory}
    given |= {} if data is None else {"data.source": source_of(data)}
    if not isinstance(config, Mapping):
        return cast("RunResult", call("run", [config], {**(settings or {}), **given}, folders))
    fields = {"store": DEFAULT_STORE, **dict(flattened(config))}
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        empty = pathlib.Path(folder, "fields.toml")
        empty.touch()  # all of it comes as settings, so relative paths are taken from the working directory
        return cast("RunResult", call("run", [empty], {**fields, **(settings or {}), **given}, folders))


def prepare(config: Path, settings: Settings = None) -> PreparedData:
    """Prepare a configuration's data set, without training; what is in it. `run` then finds it."""
    return cast("PreparedData", call("prepare", [config], settings))


def status(run: Path, settings: Settings = None) -> Status:
    """Where a run stands, also while it trains on another machine. Reads the store alone."""
    return cast("Status", call("status", [run], settings))


def runs(*stores: Path, settings: Settings = None) -> RunList:
    """All runs of these stores, each with where it stands. One is its address, or a configuration that names it."""
    return cast("RunList", call("runs", [*stores], settings))


def report(run: Path, out: Path | None = None, settings: Settings = None) -> Page:
    """Write the page about a run as it stands, into the file `out` or beside the run in its store; where it is."""
    return cast("Page", call("report", [run, *_option("--out", out)], settings))


def evaluate(
    run: Path,
    checkpoint: int | str = "best",
    split: Literal["train", "validation", "test"] | None = None,
    source: Path | None = None,
    settings: Settings = None,
    factory: str | None = None,
) -> Evaluation:
    """Evaluate a checkpoint that a run keeps, on ranks of this machine; metrics, scores of each class, calibration.

    Args:
        run: Configuration file or address.
        checkpoint: "best" by the validation, "newest", or the step of a checkpoint that the run keeps.
        split: Part of the run's data set; "test" if neither this nor `source` is given.
        source: Instead of a split a table with labels: a file, a folder or a glob, here or in a bucket.
        settings: Fields in place of the run's, for instance {"train.device": "cpu"}.
        factory: What builds a module of your own, as "my_models.py:build", where `run` is an address.
    """
    options = [*_option("--checkpoint", checkpoint), *_option("--split", split), *_option("--source", source)]
    options += _option("--factory", factory)
    return cast("Evaluation", call("evaluate", [run, *options], settings))


def export(
    run: Path,
    out: Path,
    checkpoint: int | str = "best",
    onnx: bool = True,
    overwrite: bool = False,
    settings: Settings = None,
    factory: str | None = None,
    adapter: bool = False,
) -> Export:
    """Write a trained model as a folder that loads anywhere; what was exported.

    Args:
        run: Configuration file or address.
        out: Folder to make.
        checkpoint: "best" by the validation, "newest", or the step of a checkpoint that the run keeps.
        onnx: Write model.onnx too; needs holdfast[export].
        overwrite: Replace `out` if it is an earlier export.
        settings: Fields in place of the file's that name the run, for instance {"run": "other"}.
        factory: What builds a module of your own, as "my_models.py:build", where `run` is an address.
        adapter: Of a model with [model.lora] write the adapter alone, as peft loads it, without ONNX.
    """
    options = [*_option("--factory", factory), *_flag("--adapter", adapter)]
    options += [*_option("--checkpoint", checkpoint), *_flag("--no-onnx", not onnx), *_flag("--overwrite", overwrite)]
    return cast("Export", call("export", [run, out, *options], settings))


def predict(
    model: Path,
    data: Path,
    result: Path,
    threads: int | None = None,
    truncate: bool = False,
    calibrated: bool = False,
    skip_bad: Path | None = None,
    factory: str | None = None,
    fitted_thresholds: bool = False,
) -> Prediction:
    """Predict the label of every row of a table, in memory that does not grow with it; how many rows were predicted.

    Args:
        model: Folder that `export` has written.
        data: Table with the columns that the model's README.md lists: a file, a folder or a glob, here or in a bucket.
        result: Parquet file to write; one that is there is replaced.
        threads: CPU threads; as many as there are processors by default.
        truncate: Keep the first tokens of a row that is too long.
        calibrated: Probabilities by the temperature that was fitted on validation.
        skip_bad: Leave out rows that cannot be predicted, and write this Parquet file with the reasons.
        factory: What builds the model, as "my_models.py:build", where it is a module of your own.
        fitted_thresholds: Of a binary target, or of several labels a row: predict by the thresholds with the best F1 on
            validation, and give the calibrated probabilities, to which they belong.
    """
    flags = [*_flag("--truncate", truncate), *_flag("--calibrated", calibrated)]
    flags += _flag("--fitted-thresholds", fitted_thresholds)
    options = [*_option("--threads", threads), *flags, *_option("--skip-bad", skip_bad)]
    options += _option("--factory", factory)
    return cast("Prediction", call("predict", [model, data, result, *options]))


def verify(run: Path, settings: Settings = None) -> Verification:
    """Hash every checkpoint that a run keeps; which are valid. A damaged one is no error: look at `valid`."""
    return cast("Verification", call("verify", [run], settings))


def audit(run: Path, settings: Settings = None) -> Audit:
    """Check in the ledger which samples trained the model. A violation is no error: look at `ok`."""
    return cast("Audit", call("audit", [run], settings))


def stop(run: Path, wait: bool = True, settings: Settings = None) -> StopRequest:
    """Ask the process that trains a run to save and end, and wait for it unless `wait` is false; what came of it."""
    return cast("StopRequest", call("stop", [run, *_flag("--no-wait", not wait)], settings))


def _option(name: str, value: object) -> list[object]:
    return [] if value is None else [name, value]


def _flag(name: str, is_set: bool) -> list[object]:
    return [name] if is_set else []
