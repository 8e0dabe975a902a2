"""The evaluation of a checkpoint: the run's own, of the promoted and the best one on the test split, or as asked for.

Invariant: the result belongs to one checkpoint and is a function of it and of the data alone; one that a person asks
for writes nothing into the store.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from storage.checkpoints.checkpoints import FoundCheckpoint, hash_weights
from storage.checkpoints.results import calibration_key, evaluation_key, write_result
from storage.datasets import DatasetManifest
from storage.errors import HoldfastError
from storage.objects.addresses import open_store
from storage.objects.store import Store
from storage.runs.metric_values import metric_value
from training.agreement import Agreement
from training.building import make_model, make_validator
from training.checkpointing.restoring import load_weights
from training.data.waiting import load_dataset_patiently, wait_of
from training.meeting import note_met
from training.metrics.calibration import calibrate, most_rows
from training.metrics.reporter import Reporter
from training.metrics.scores import describe, score
from training.metrics.slices import score_slices
from training.metrics.validation import Predicted
from training.models.precision import choose_precision
from training.process_group import join_process_group
from training.spec import ResumePoint, SegmentSpec
from training.stopping import StopFlag, StopReason
from training.targets.registry import kind_of
from training.world import World

EVALUATION_FORMAT = 1


class _StoppedError(Exception):
    """All ranks agreed to stop."""


def evaluate(spec: SegmentSpec, world: World, flag: StopFlag) -> None:
    """Score the checkpoint `spec.resume`, and write the result beside it in the store, or as `spec.ad_hoc` asks.

    The run's own test split comes with a calibration, for which the validation split is predicted too. So does that of
    `spec.best`, with the same model and data.
    """
    if spec.resume is None:
        raise ValueError("an evaluation needs a checkpoint")
    try:
        evaluation = _Evaluation(spec, world, flag)
        for point in filter(None, (spec.best, spec.resume)):
            _write_results(spec, world, point, evaluation.make(point))
    except _StoppedError:
        return
    except HoldfastError as error:
        if spec.ad_hoc is not None and world.is_first:
            _leave(spec.ad_hoc.result_file, {"error": str(error), "kind": type(error).__name__})
        raise


def _write_results(spec: SegmentSpec, world: World, point: ResumePoint, found: Mapping[str, Any]) -> None:
    """Write what was found of the checkpoint `point`, for the command that asked, or beside it in the store."""
    if not world.is_first:
        return
    if spec.ad_hoc is not None:
        _leave(spec.ad_hoc.result_file, found)
        return
    store = spec.open_store()
    # The evaluation last: where it is, all of it is.
    write_result(store, calibration_key(point.path), found["calibration"])
    write_result(store, evaluation_key(point.path), found["evaluation"])


class _Evaluation:
    """One rank's part in an evaluation, for one checkpoint after the other. Made by all ranks alike."""

    def __init__(self, spec: SegmentSpec, world: World, flag: StopFlag) -> None:
        self._spec = spec
        self._world = world
        self._reporter = Reporter(spec.progress_file, world, spec.train.batch_size)
        self._flag = flag
        self._agreement = Agreement(world, flag)
        self._precision = choose_precision(spec.train, world)
        self._reporter.step = spec.resume.step if spec.resume is not None else 0
        join_process_group(spec.train, self._precision, world)
        note_met(spec.scratch_folder, world.slot)
        self._store = spec.open_store()
        self._other = spec.ad_hoc.data if spec.ad_hoc is not None else None
        self._data = open_store(self._other) if self._other else self._store
        wait = wait_of(spec, flag, self._reporter.noted)
        self._dataset = load_dataset_patiently(spec, self._data, wait)
        self._kind = kind_of(self._dataset.target, spec.validation.metrics)
        names = [column.name for column in self._dataset.categorical]
        self._slices = [names.index(name) for name in spec.validation.slices]
        self._model = make_model(
            spec, self._dataset, self._precision, self._reporter.noted if world.is_first else print
        )

    def make(self, point: ResumePoint) -> dict[str, Any]:
        """What is found: `evaluation`, and `calibration` or None; empty but on the first rank. A collective.

        Raises `_StoppedError`.
        """
        spec, store, data, dataset, model = self._spec, self._store, self._data, self._dataset, self._model
        split = spec.ad_hoc.split if spec.ad_hoc else "test"
        found = load_weights(store, point, model)
        # Now, while the files are there: predictions may take longer than a reader of a checkpoint is waited for.
        about = _name(found, store, dataset) if self._world.is_first else {}
        with self._reporter.phase("evaluate"):
            predicted = self._predict(model, data, dataset, split, columns=self._slices)
            is_calibrated, fitted_on = split == "test" and not self._other, None
            if is_calibrated and dataset.splits["validation"].num_rows:
                fitted_on = self._predict(model, data, dataset, "validation", most_rows(self._kind))
        if not self._world.is_first:
            return {}
        calibration = None
        if is_calibrated:
            fitted = None if fitted_on is None else fitted_on[:2]
            calibration = about | calibrate(fitted, predicted[:2], self._kind, dataset.splits["validation"].num_rows)
        return {"evaluation": self._score(predicted, about, split), "calibration": calibration}

    def _predict(
        self,
        model: nn.Module,
        data: Store,
        dataset: DatasetManifest,
        split: str,
        max_samples: int | None = None,
        columns: Sequence[int] = (),
    ) -> Predicted:
        config = self._spec.validation.model_copy(update={"max_samples": max_samples})
        wait = wait_of(self._spec, self._flag, self._reporter.noted)
        validator = make_validator(self._spec, self._world, data, dataset, self._precision, split, config, wait)
        predicted = validator.predict(model, self._goes_on, columns)
        if predicted is None:
            raise _StoppedError
        return predicted

    def _goes_on(self) -> bool:
        self._reporter.alive()
        return self._agreement.decide().stop is StopReason.NONE

    def _score(self, predicted: Predicted, about: dict[str, Any], split: str) -> dict[str, Any]:
        logits, labels, _ = predicted
        metrics = score(logits, labels, self._kind)
        return {
            **about,
            "format": EVALUATION_FORMAT,
            "split": split,
            "num_samples": len(labels),
            "metrics": {name: metric_value(number) for name, number in metrics.items()},
            **describe(logits, labels, self._kind),
            **({"slices": self._score_slices(predicted)} if self._slices else {}),
        }

    def _score_slices(self, predicted: Predicted) -> list[dict[str, Any]]:
        logits, labels, categorical = predicted
        return [
            score_slices(logits, labels, codes, self._dataset.categorical[index], self._kind)
            for index, codes in zip(self._slices, categorical.unbind(dim=1), strict=True)
        ]


def _name(found: FoundCheckpoint, store: Store, dataset: DatasetManifest) -> dict[str, Any]:
    """The checkpoint and the classes that a result is of, JSON-able."""
    return {
        "step": found.index.step,
        "checkpoint_digest": found.digest,
        "weights_sha256": hash_weights(store, found),
        "kind": dataset.target.kind,
        "classes": dataset.target.classes,
    }


def _leave(result_file: str, found: Mapping[str, Any]) -> None:
    """Write what was found, whole or not at all, for the process that launched the ranks and outlives them."""
    path = Path(result_file)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(found), encoding="utf-8")
    beside.replace(path)
