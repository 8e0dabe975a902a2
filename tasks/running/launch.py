"""What ranks are launched with: the run's lease, and a specification of their work in a folder of their own.

Invariant: whoever launches ranks holds the lease, and the lease says where their folder is, so whoever finds it later
finds them too.
"""

from pathlib import Path
from typing import Literal

from storage.runs.holders import this_process
from storage.runs.manifest import Generation
from storage.runs.run_state import Lease, RunState
from storage.runs.transitions import take_lease
from tasks.compatibility import as_begun
from tasks.configuration import RunConfig
from tasks.places import RunPlaces
from tasks.running.ranks import Ranks
from training.specification import ResumePoint, SegmentSpec

Work = Literal["train", "evaluate"]
SPECIFICATION_NAME = "segment.json"
LOG_NAME = "ranks.log"


def hold_lease(config: RunConfig, places: RunPlaces, work: Work) -> Generation:
    """Take the run's lease for this process. Raises `RunBusyError` if somebody else was quicker.

    One that this process has already was granted to an earlier call whose answer was lost: before ranks are launched,
    `recover` has settled whatever else there was.
    """
    head = places.manifest.load_head()
    if head.state.lease is not None and head.state.lease.holder == this_process():
        return head
    change = take_lease(this_process(), config.train.ranks, work, lambda fence: _new_folder(places, work, fence))
    return places.manifest.commit("segment began" if work == "train" else "evaluation began", change)


def find_folder(places: RunPlaces, lease: Lease) -> Path:
    """The folder of a lease's ranks on their machine. Leases of before did not record it."""
    return Path(lease.scratch) if lease.scratch is not None else places.segment_scratch(lease.fence)


def make_specification(config: RunConfig, places: RunPlaces, state: RunState) -> SegmentSpec:
    """What the ranks of the lease are told: the configuration, and the promoted checkpoint to start from."""
    lease = state.lease
    assert lease is not None
    config = as_begun(config, state)
    points = [ResumePoint(path=record.path, digest=record.digest, step=record.step) for record in state.kept]
    return SegmentSpec(
        work=lease.work,
        run=config.run,
        store=places.store.address,
        cache=str(places.cache) if places.cache else None,
        scratch=str(find_folder(places, lease)),
        fence=lease.fence,
        dataset_digest=state.dataset_digest,
        dataset_sha256=state.dataset_sha256,
        resume=points[0] if points else None,
        fallbacks=points[1:],
        model=config.model,
        train=config.train,
        validation=config.validation,
        checkpoint=config.checkpoint,
        divergence=config.divergence,
        rollbacks=state.rollbacks,
        budget_seconds=config.segment.seconds if lease.work == "train" else None,
    )


def make_ranks(config: RunConfig, spec: SegmentSpec) -> Ranks:
    """The ranks for a specification, to be launched as a context manager; it is written for them."""
    spec.scratch_folder.mkdir(parents=True, exist_ok=True)
    path = spec.scratch_folder / SPECIFICATION_NAME
    path.write_text(spec.model_dump_json(), encoding="utf-8")
    return Ranks(path, spec.scratch_folder / LOG_NAME, config.train, config.segment.grace_seconds)


def _new_folder(places: RunPlaces, work: Work, fence: int) -> Path:
    # Who follows a run's segments takes folders with a number for a name for theirs.
    return places.segment_scratch(fence) if work == "train" else places.scratch / f"evaluation-{fence:08d}"
