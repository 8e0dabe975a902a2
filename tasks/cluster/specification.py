"""Specification of the ranks' work: the only module that builds it from a run's configuration and state.

Invariant: what two launches of one run have in common stands here; only what differs between them is an argument.
"""

from pathlib import Path
from typing import Any, Literal

from storage.runs.run_state import CheckpointRecord, RunState
from tasks.configuration.run import RunConfig
from tasks.run_paths import RunPaths
from training.spec import ResumePoint, SegmentSpec


def make_specification(
    config: RunConfig,
    run_paths: RunPaths,
    state: RunState,
    work: Literal["train", "evaluate"],
    *,
    scratch: Path,
    fence: int,
    resume: ResumePoint | None,
    **more: Any,
) -> SegmentSpec:
    """Specification of `work` in the folder `scratch`, from the checkpoint `resume` or from the first weights.

    `more` are fields of `SegmentSpec` that have a default.
    """
    return SegmentSpec(
        work=work,
        run=config.run,
        store=run_paths.store.address,
        cache=str(run_paths.cache) if run_paths.cache else None,
        scratch=str(scratch),
        fence=fence,
        dataset_digest=state.dataset_digest,
        dataset_sha256=state.dataset_sha256,
        resume=resume,
        model=config.model,
        train=config.train,
        validation=config.validation,
        checkpoint=config.checkpoint,
        **more,
    )


def resume_point(record: CheckpointRecord) -> ResumePoint:
    """Checkpoint of a manifest's record, as it stands in the ranks' specification."""
    return ResumePoint(path=record.path, digest=record.digest, step=record.step)
