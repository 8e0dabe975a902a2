"""Predictions for rows that come in batches, by an exported model.

Rows are collected into windows, in which those of about one length go through the network together: little padding.
Invariant: predictions come in the order of the rows, and memory holds one window, whatever the number of rows.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import ConfigurationError
from training.determinism import pin_numerics
from training.export.standalone.holdfast_inputs import Encoded, join
from training.export.standalone.holdfast_model import MODEL_FILE, Model, ModelFolderError, load_model
from training.own_code import Reference, load_function

WINDOW_ROWS = 16_384
ADVICE = "Give the code that the model was trained with: a copy of it is in the folder's own_code."
_Tag = TypeVar("_Tag")


class Predicted(NamedTuple, Generic[_Tag]):
    """Predictions of one window: the tags of its batches, what is predicted of each row, probabilities [N, classes]."""

    tags: list[_Tag]
    labels: list[Any]
    probabilities: NDArray[np.float64]


def open_model(
    folder: Path,
    threads: int | None,
    truncates: bool,
    calibrated: bool = False,
    factory: Reference | None = None,
    fitted_thresholds: bool = False,
) -> Model:
    """The model, computed by so many threads; raises `ConfigurationError` if the folder is no export, or was changed.

    `calibrated` and `fitted_thresholds` are as in `load_model`. With `truncates` the first tokens are kept of a row
    that is too long, also where training refused such rows. `factory` builds the module of a model of the user's own.
    """
    pin_numerics(threads)
    build = None if factory is None else _load_factory(folder, factory)
    try:
        model = load_model(folder, calibrated=calibrated, build=build, fitted_thresholds=fitted_thresholds)
    except (ModelFolderError, ImportError) as error:
        raise ConfigurationError(str(error)) from error
    model.inputs.truncates = model.inputs.truncates or truncates
    return model


def _load_factory(folder: Path, factory: Reference) -> Callable[..., Any]:
    """The function, whose files are those that the folder was exported with. Raises `ConfigurationError`."""
    try:
        described = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))["architecture"]
        pinned = _Exported(described["function"], described["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{factory.field} is given, and {folder} has no module of a user's own.") from error
    return load_function(factory, pinned, ADVICE)


class _Exported(NamedTuple):
    """What model.json has of the code."""

    function: str
    files: dict[str, str]


def predict_windows(model: Model, batches: Iterable[tuple[_Tag, Encoded]]) -> Iterator[Predicted[_Tag]]:
    """Predictions for all rows of all batches."""
    tags: list[_Tag] = []
    window: list[Encoded] = []
    num_rows = 0
    for tag, encoded in batches:
        tags.append(tag)
        window.append(encoded)
        num_rows += len(encoded)
        if num_rows >= WINDOW_ROWS:
            yield _predict(model, tags, window)
            tags, window, num_rows = [], [], 0
    if window:
        yield _predict(model, tags, window)


def _predict(model: Model, tags: list[_Tag], window: list[Encoded]) -> Predicted[_Tag]:
    labels, probabilities = model.answers_of(model.logits(join(window)))
    return Predicted(tags, labels, probabilities.numpy())
