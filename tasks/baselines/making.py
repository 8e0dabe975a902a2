"""A linear model of a data set: learned from its training split, scored on its test split.

Invariant: the figures are a function of the data set alone. What is read are the samples that a network is trained and
tested on, row by row as they stand in the shards, whose order is random already: the first ones are a fair part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage.datasets import DatasetManifest
from storage.objects.store import Store
from tasks.baselines.limits import MAX_CLASSES, MAX_OUTPUTS, Limits, NoBaselineError, max_terms
from tasks.baselines.logistic import Linear, fit_logistic
from tasks.baselines.scores import score_outputs
from tasks.baselines.terms import Weighting, count_terms, weighting_of
from training.data.row_groups import RowGroups
from training.data.samples import Samples


@dataclass(frozen=True)
class _Rows:
    counts: sparse.csr_array  # [N, terms]
    labels: NDArray[Any]  # [N] or [N, classes]
    weights: NDArray[np.float32]  # [N]


def make_baseline(store: Store, dataset: DatasetManifest, folder: Path, limits: Limits) -> dict[str, Any]:
    """Metrics on the test split and of what they are, JSON-able; `folder` is for files under way.

    Raises `NoBaselineError` where there is none, `CorruptObjectError` and `StoreError` where a shard cannot be read.
    """
    kind, num_classes = dataset.target.kind, len(dataset.target.classes)
    num_outputs = 1 if kind == "binary" else num_classes
    num_train, num_test = (dataset.splits[name].num_rows for name in ("train", "test"))
    _require_feasible(kind, num_classes, num_train, num_test)
    rows = _read_part(store, dataset, folder, limits, num_outputs)
    weighting = weighting_of(rows.counts, max_terms(num_outputs))
    if not len(weighting.columns):
        raise NoBaselineError("no token is in two rows of the training split")
    targets = _targets(kind, rows.labels, num_classes)
    is_one_of = kind == "multiclass"
    model = fit_logistic(weighting.apply(rows.counts), targets, rows.weights, is_one_of, limits.tick)
    outputs, labels = _predict(store, dataset, folder, limits, weighting, model)
    return {
        "metrics": score_outputs(kind, outputs, labels, num_classes),
        "num_rows": len(rows.weights),
        "num_train_rows": num_train,
        "num_test_rows": num_test,
        "num_terms": len(weighting.columns),
    }


def _require_feasible(kind: str, num_classes: int, num_train: int, num_test: int) -> None:
    if not num_train or not num_test:
        raise NoBaselineError(f"the {'test' if num_train else 'training'} split has no rows")
    if num_classes > MAX_CLASSES:
        raise NoBaselineError(
            f"it takes too long for {num_classes:,} classes; it is made for at most {MAX_CLASSES:,} of them"
        )
    if kind == "multilabel" and num_test * num_classes > MAX_OUTPUTS:
        raise NoBaselineError(
            f"the test split has too many rows for it: {num_test:,} of {num_classes:,} classes; it is made for at most "
            f"{MAX_OUTPUTS // num_classes:,} rows"
        )


def _read_part(store: Store, dataset: DatasetManifest, folder: Path, limits: Limits, num_outputs: int) -> _Rows:
    """The first rows of the training split: as many as the limits allow, and at least one."""
    parts: list[_Rows] = []
    rows_left, counts_left = limits.rows, limits.counts_for(num_outputs)
    for samples in _row_groups(store, dataset, "train", folder):
        limits.tick()
        counts = count_terms(samples, dataset.vocabulary_size)
        number = min(rows_left, int(np.searchsorted(counts.indptr, counts_left, side="right")) - 1)
        number = min(len(samples), number if parts else max(1, number))
        parts.append(_Rows(counts[:number], samples.labels[:number], samples.weights[:number]))
        rows_left -= number
        counts_left -= int(counts.indptr[number])
        if number < len(samples) or not rows_left:
            break
    return _Rows(
        sparse.vstack([part.counts for part in parts], format="csr"),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


def _predict(
    store: Store, dataset: DatasetManifest, folder: Path, limits: Limits, weighting: Weighting, model: Linear
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Outputs, as `score_outputs` takes them, and labels of all test rows."""
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []
    is_one_of = dataset.target.kind == "multiclass"
    for samples in _row_groups(store, dataset, "test", folder):
        limits.tick()
        scores = model.scores(weighting.apply(count_terms(samples, dataset.vocabulary_size)))
        found.append((scores.argmax(axis=1) if is_one_of else scores, samples.labels))
    outputs, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return outputs, labels


def _row_groups(store: Store, dataset: DatasetManifest, split: str, folder: Path) -> Iterator[Samples]:
    groups = RowGroups(store, dataset, split, folder)
    yield from groups.decode(range(-(-groups.num_rows // groups.group_rows)))


def _targets(kind: str, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32]:
    if kind == "multilabel":
        return labels.astype(np.float32)
    targets = np.zeros((len(labels), num_classes), np.float32)
    targets[np.arange(len(labels)), labels] = 1
    return targets[:, 1:] if kind == "binary" else targets
