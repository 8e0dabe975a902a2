"""The evaluation of a checkpoint: the run's own, of the promoted one on the test split, or one that a person asks for.

Invariant: the result belongs to one checkpoint and is a function of it and of the data alone; one that a person asks
for writes nothing into the store.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from storage.checkpoints.checkpoints import FoundCheckpoint, hash_weights
from storage.checkpoints.results import calibration_key, evaluation_key, write_result
from storage.datasets import DatasetManifest, load_dataset
from storage.errors import HoldfastError
from storage.objects.addresses import open_store
from storage.objects.store import Store
from storage.runs.metric_values import metric_value
from training.agreement import Agreement
from training.building import make_model, make_objective, make_validator
from training.data.waiting import wait_of
from training.evaluating.calibration import Predictions, calibrate, most_rows
from training.model.precision import choose_precision
from training.process_group import join_process_group
from training.saving.restoring import load_weights
from training.specification import SegmentSpec
from training.stopping import StopFlag, StopReason
from training.watching.metrics import describe, score
from training.watching.reporter import Reporter
from training.world import World

EVALUATION_FORMAT = 1


class _StoppedError(Exception):
    """All ranks agreed to stop."""


def evaluate(spec: SegmentSpec, world: World, flag: StopFlag) -> None:
    """Score the checkpoint `spec.resume`, and put the result beside it in the store, or where `spec.asked` says.

    The run's own test split comes with a calibration, for which the validation split is predicted too.
    """
    try:
        found = _Evaluation(spec, world, flag).make()
    except _StoppedError:
        return
    except HoldfastError as error:
        if spec.asked is not None and world.is_first:
            _leave(spec.asked.result_file, {"error": str(error), "kind": type(error).__name__})
        raise
    if not world.is_first:
        return
    if spec.asked is not None:
        _leave(spec.asked.result_file, found)
        return
    assert spec.resume is not None
    store = spec.open_store()
    # The evaluation last: where it is, all of it is.
    write_result(store, calibration_key(spec.resume.path), found["calibration"])
    write_result(store, evaluation_key(spec.resume.path), found["evaluation"])


class _Evaluation:
    """One rank's part in it."""

    def __init__(self, spec: SegmentSpec, world: World, flag: StopFlag) -> None:
        self._spec = spec
        self._world = world
        self._reporter = Reporter(spec.progress_file, world, spec.train.batch_size)
        self._flag = flag
        self._agreement = Agreement(world, flag)
        self._precision = choose_precision(spec.train, world)

    def make(self) -> dict[str, Any]:
        """What is found: `evaluation`, and `calibration` or None; empty but on the first rank. A collective.

        Raises `_StoppedError`.
        """
        spec = self._spec
        if spec.resume is None:
            raise ValueError("an evaluation needs a checkpoint")
        self._reporter.step = spec.resume.step
        join_process_group(spec.train, self._precision, self._world)
        store = spec.open_store()
        other = spec.asked.data if spec.asked is not None else None
        data, split = open_store(other) if other else store, spec.asked.split if spec.asked else "test"
        dataset = load_dataset(data, spec.dataset_digest, spec.dataset_sha256)
        model = make_model(spec, dataset, self._precision)
        found = load_weights(store, spec.resume, model)
        # Now, while the files are there: predictions may take longer than a reader of a checkpoint is waited for.
        about = _name(found, store, dataset) if self._world.is_first else {}
        with self._reporter.phase("evaluate"):
            predictions = self._predict(model, data, dataset, split)
            is_calibrated, fitted_on = split == "test" and not other, None
            if is_calibrated and dataset.splits["validation"].num_rows:
                fitted_on = self._predict(model, data, dataset, "validation", most_rows(dataset.target))
        if not self._world.is_first:
            return {}
        calibration = (
            about | calibrate(fitted_on, predictions, dataset.target, dataset.splits["validation"].num_rows)
            if is_calibrated
            else None
        )
        return {"evaluation": self._score(predictions, dataset, about, split), "calibration": calibration}

    def _predict(
        self, model: nn.Module, data: Store, dataset: DatasetManifest, split: str, max_samples: int | None = None
    ) -> Predictions:
        config = self._spec.validation.model_copy(update={"max_samples": max_samples})
        wait = wait_of(self._spec, self._flag, self._reporter.noted)
        validator = make_validator(self._spec, self._world, data, dataset, self._precision, split, config, wait)
        predictions = validator.predict(model, self._goes_on)
        if predictions is None:
            raise _StoppedError
        return predictions

    def _goes_on(self) -> bool:
        self._reporter.alive()
        return self._agreement.decide().stop is StopReason.NONE

    def _score(
        self, predictions: Predictions, dataset: DatasetManifest, about: dict[str, Any], split: str
    ) -> dict[str, Any]:
        objective = make_objective(self._spec, dataset, self._precision).cpu()
        metrics = score(*predictions, dataset.target, objective)
        return {
            **about,
            "format": EVALUATION_FORMAT,
            "split": split,
            "num_samples": len(predictions[1]),
            "metrics": {name: metric_value(number) for name, number in metrics.items()},
            **describe(*predictions, dataset.target),
        }


def _name(found: FoundCheckpoint, store: Store, dataset: DatasetManifest) -> dict[str, Any]:
    """Of which checkpoint a result is, and for which classes."""
    return {
        "step": found.index.step,
        "checkpoint_digest": found.digest,
        "weights_sha256": hash_weights(store, found),
        "kind": dataset.target.kind,
        "classes": dataset.target.classes,
    }


def _leave(result_file: str, found: Mapping[str, Any]) -> None:
    """Leave what was found for whoever launched the ranks, who reads it when they are gone: whole or not at all."""
    path = Path(result_file)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(found), encoding="utf-8")
    beside.replace(path)
