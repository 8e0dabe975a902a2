"""Segments of a small model, trained by real ranks, without flow and manifest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME, FoundCheckpoint
from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks
from tests.helpers.processes import LONGEST_SECONDS, RankProcesses
from tests.helpers.runs import find_complete_checkpoints
from tests.helpers.specifications import spec_of
from training.configuration import CheckpointConfig, TrainConfig
from training.model_configuration import EncoderConfig, ModelConfig
from training.spec import ResumePoint, SegmentSpec
from training.validation_configuration import ValidationConfig
from training.world import World

SMALL_MODEL = EncoderConfig(width=16, layers=2, heads=2, feedforward=32, dropout=0.2, metadata_width=4)


def make_spec(
    store: Store,
    dataset: DatasetManifest,
    folder: Path,
    fence: int = 2,
    resume: FoundCheckpoint | None = None,
    budget_seconds: float | None = None,
    every_steps: int = 7,
    validate_every_steps: int = 10,
    keep_best: int = 0,
    background: bool = False,
    model: ModelConfig = SMALL_MODEL,
    **train: Any,
) -> SegmentSpec:
    """A segment of 20 steps, six microbatches a step, with a checkpoint every `every_steps` and no other.

    Steps of milliseconds would overtake saves beside training: these are made at once, so it is known which there are.
    """
    settings = {"steps": 20, "batch_size": 24, "microbatches": 6, "log_every_steps": 5, "seed": 11, **train}
    folder.mkdir(parents=True, exist_ok=True)
    return spec_of(
        store.address,
        dataset,
        folder,
        model,
        TrainConfig(**settings),
        run="small",
        fence=fence,
        resume=ResumePoint(path=resume.path, digest=resume.digest, step=resume.index.step) if resume else None,
        validation=ValidationConfig(every_steps=validate_every_steps, batch_size=20),
        checkpoint=CheckpointConfig(every_steps=every_steps, keep_best=keep_best, background=background),
        budget_seconds=budget_seconds,
    )


def launch(spec: SegmentSpec, grace_seconds: float = 30) -> Ranks:
    """The ranks of a segment, to be used as a context manager."""
    return Ranks(spec, grace_seconds)


def train_to_end(spec: SegmentSpec, store: LocalStore) -> OutcomeRecord:
    """Run a segment until its ranks are gone; their outcome. Fails with their log if they left none."""
    with launch(spec) as ranks:
        while ranks.is_running(POLL_SECONDS):
            pass
    outcome = find_outcome(store, spec.run, spec.fence)
    assert outcome is not None, read_log(spec)
    return outcome


def train_forked(
    spec: SegmentSpec,
    store: LocalStore,
    target: Callable[[SegmentSpec, World], Any] | None = None,
    longest_seconds: float = LONGEST_SECONDS,
) -> OutcomeRecord:
    """As `train_to_end`, by ranks that begin at once, without an agent."""
    RankProcesses(spec, target).run(longest_seconds)
    outcome = find_outcome(store, spec.run, spec.fence)
    assert outcome is not None, read_log(spec)
    return outcome


def checkpoint_at(store: LocalStore, step: int, fence: int) -> FoundCheckpoint:
    """The segment's checkpoint of this step."""
    found = {checkpoint.index.step: checkpoint for checkpoint in find_complete_checkpoints(store, "small", fence)}
    return found[step]


def read_state(store: LocalStore, found: FoundCheckpoint) -> dict[str, Any]:
    """What a checkpoint holds besides tensors."""
    state: dict[str, Any] = json.loads(store.read(f"{found.path}/{STATE_NAME}"))
    return state


def read_log(spec: SegmentSpec) -> str:
    """What the ranks printed."""
    return (spec.scratch_folder / "ranks.log").read_text(errors="replace")
