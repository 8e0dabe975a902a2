"""Predictions for rows that come in batches, by an exported model.

Rows are collected into windows, in which those of about one length go through the network together: little padding.
Invariant: predictions come in the order of the rows, and memory holds one window, whatever the number of rows.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import ConfigurationError
from training.determinism import pin_numerics
from training.export.standalone.holdfast_inputs import Encoded, join
from training.export.standalone.holdfast_model import Model, ModelFolderError, load_model

WINDOW_ROWS = 16_384
_Tag = TypeVar("_Tag")


class Predicted(NamedTuple, Generic[_Tag]):
    """Predictions of one window: the tags of its batches, what is predicted of each row, probabilities [N, classes]."""

    tags: list[_Tag]
    labels: list[Any]
    probabilities: NDArray[np.float64]


def open_model(folder: Path, threads: int | None, truncates: bool, calibrated: bool = False) -> Model:
    """The model, computed by so many threads; raises `ConfigurationError` if the folder is no export, or was changed.

    `calibrated` is as in `load_model`. With `truncates` the first tokens are kept of a row that is too long, also where
    training refused such rows.
    """
    pin_numerics(threads)
    try:
        model = load_model(folder, calibrated=calibrated)
    except (ModelFolderError, ImportError) as error:
        raise ConfigurationError(str(error)) from error
    model.inputs.truncates = model.inputs.truncates or truncates
    return model


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
    logits = model.logits(join(window))
    return Predicted(tags, model.outputs.predict(logits), model.probabilities_of(logits).numpy())
