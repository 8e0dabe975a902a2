"""Who watches a job that goes on without the process that launched it, and what it does not do twice."""

from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConflictError, FencedError, ObjectUnreadableError, RunBusyError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import CheckpointRecord, Holder, Lease, RejectedRecord, ValidationFigures
from storage.runs.transitions import end_evaluation, promote, reject, take_lease, take_over
from tasks import segment
from tasks.configuration.run import DataConfig, RunConfig
from tasks.preemption.signals import StopRequest
from tasks.recovery.taking_over import require_own_watch, was_taken_up
from tasks.run_paths import RunPaths
from tests.helpers.runs import make_run
from training.metrics.reporter import CheckpointReport


class Job:
    """Remembers whether it was left to others."""

    is_left = False

    def leave(self) -> None:
        self.is_left = True


def promoted_at(step: int) -> CheckpointRecord:
    return CheckpointRecord(step=step, path="p", digest="d", weights_sha256="w", num_bytes=1, fence=2, promoted_at=0)


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    """A run whose lease this process has."""
    store = LocalStore(tmp_path / "store")
    make_run(store)
    run_paths = RunPaths(store, Manifest(store, "run"), tmp_path / "scratch", tmp_path / "data")
    run_paths.manifest.commit("segment began", take_lease(this_process(), 2))
    return run_paths


def test_who_holds_the_lease_goes_on(run_paths: RunPaths) -> None:
    job: Any = Job()
    require_own_watch(run_paths, job, fence=2)
    assert not job.is_left


def hand_over(run_paths: RunPaths) -> Lease:
    """Another process watches the job from now on; the lease as it was."""
    lease = run_paths.manifest.load_head().state.lease
    assert lease is not None
    heir = lease.holder.model_copy(update={"host": "another-host", "pid": 77})
    run_paths.manifest.commit("watched by another process", take_over(lease, heir))
    return lease


def test_whose_lease_was_taken_over_leaves_the_job_to_whoever_watches_it_now(run_paths: RunPaths) -> None:
    lease = hand_over(run_paths)
    job: Any = Job()
    with pytest.raises(RunBusyError, match="watched by process 77 on another-host now"):
        require_own_watch(run_paths, job, lease.fence)
    assert job.is_left


def test_whose_lease_was_taken_is_told_that_it_has_ended_and_leaves_nothing_running(run_paths: RunPaths) -> None:
    lease = hand_over(run_paths)
    run_paths.manifest.commit("ended by its heir", end_evaluation(lease.fence))
    run_paths.manifest.commit("segment began", take_lease(this_process().model_copy(update={"pid": 77}), 2))
    job: Any = Job()
    with pytest.raises(FencedError, match=r"lease of segment 2 of run 'run' has ended; it is now held by segment 5"):
        require_own_watch(run_paths, job, lease.fence)
    assert not job.is_left


def test_what_another_watcher_has_promoted_and_deleted_since_is_not_called_damaged(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def promote(_config: RunConfig, _run_paths: RunPaths, path: str, holder: Holder) -> None:
        raise ObjectUnreadableError(f"{path}/index.json is missing.")

    monkeypatch.setattr(segment, "promote", promote)
    lease = hand_over(run_paths)
    data = DataConfig(text="t", label="l", kind="multiclass")
    late = segment._Segment(RunConfig(run="run", store=run_paths.store.address, data=data), StopRequest())
    job: Any = Job()
    with pytest.raises(RunBusyError, match="watched by process 77"):
        late._take_up(CheckpointReport(path="checkpoints/33", step=33), lease.fence, job)
    assert job.is_left
    assert run_paths.manifest.load_head().state.quarantined == []


def test_who_comes_late_promotes_and_rejects_nothing_that_its_successor_watches(run_paths: RunPaths) -> None:
    hand_over(run_paths)
    late = promoted_at(33)
    figures = ValidationFigures(metric="auc", value=0.5, step=33, best_value=0.5, best_step=33)
    rejected = RejectedRecord(checkpoint=late, validation=figures, reason="too low", rejected_at=0)
    for change in (promote(late, RetentionPolicy(newest=1), holder=this_process()), reject(rejected, this_process())):
        with pytest.raises(ConflictError, match="watched by process 77 on another-host now"):
            run_paths.manifest.commit("late", change)
    state = run_paths.manifest.load_head().state
    assert (state.promoted, state.rejected) == (None, [])
    run_paths.manifest.commit("settled", promote(late, RetentionPolicy(newest=1)))


def test_what_was_promoted_or_quarantined_before_is_not_taken_up_again(run_paths: RunPaths) -> None:
    state = run_paths.manifest.load_head().state
    new = CheckpointReport(path="p", step=20)
    assert not was_taken_up(state, new)
    promoted = state.model_copy(update={"promoted": promoted_at(20)})
    assert was_taken_up(promoted, new)
    assert not was_taken_up(promoted, CheckpointReport(path="q", step=21))
