"""Specification of ranks' work, for tests and benchmarks that have neither flow nor manifest."""

from pathlib import Path
from typing import Any

from storage.datasets import SEAL_FIELD, DatasetManifest
from storage.objects.digests import seal, sha256_of_bytes
from training.configuration import CheckpointConfig, TrainConfig
from training.model_configuration import ModelConfig
from training.spec import SegmentSpec
from training.validation_configuration import ValidationConfig


def spec_of(
    store: str, dataset: DatasetManifest, scratch: Path, model: ModelConfig, train: TrainConfig, **more: Any
) -> SegmentSpec:
    """The first segment of a run of no importance; `more` are fields of the specification that shall be others."""
    fields = {
        "work": "train",
        "run": "bench",
        "fence": 1,
        "resume": None,
        "dataset_digest": dataset.digest,
        "dataset_sha256": sha256_of_bytes(seal(dataset.model_dump(mode="json"), SEAL_FIELD)),
        "validation": ValidationConfig(),
        "checkpoint": CheckpointConfig(),
        **more,
    }
    return SegmentSpec(store=store, scratch=str(scratch), model=model, train=train, **fields)
