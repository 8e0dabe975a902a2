"""A run at rest with all that a resume or an audit of it needs: a data set, three checkpoints and their ledger."""

from collections.abc import Sequence
from pathlib import Path

from storage.datasets import dataset_sha256
from storage.first_weights import START_NAME
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_records import FrozenFile, StartRecord
from storage.runs.run_state import RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.runs import lease_run, make_checkpoint, put_frozen, record_of

# The steps that each of two segments saved.
SEGMENTS = ((10, 20), (30,))
# What is damaged is read a second time at once.
CONFIG = {"retry": {"reread_seconds": 0}}


def make_kept_run(store: Store, folder: Path, run: str = "run", has_frozen: bool = False) -> Manifest:
    """A run that was trained to step 30 of 100; runs whose names have other lengths have other data sets."""
    frozen = [put_frozen(store, folder / f"start-{run}", run)] if has_frozen else []
    dataset = publish_small_dataset(store, folder / f"data-{run}", rows=10 * len(run))
    manifest = Manifest(store, run)
    manifest.create(
        RunState(
            run=run, created_at=1.0, config=CONFIG, dataset_digest=dataset.digest, steps_total=100,
            dataset_sha256=dataset_sha256(store, dataset.digest), start=_start_of(store, frozen),
        )
    )  # fmt: skip
    for steps in SEGMENTS:
        fence = lease_run(manifest)
        for step in steps:
            found = make_checkpoint(store, folder / f"files-{run}", step, fence, run=run, frozen=frozen)
            manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=3)))
        manifest.commit("ended", end_segment(ended(fence, steps[-1])))
    return manifest


def _start_of(store: Store, frozen: Sequence[FrozenFile]) -> StartRecord | None:
    """The record of first weights, of which the checkpoints have none; None without such."""
    if not frozen:
        return None
    folder = frozen[0].key.rpartition("/")[0]
    plan = canonical_json({"files": {file.key.rpartition("/")[2]: file.sha256 for file in frozen}})
    store.write(f"{folder}/{START_NAME}", plan)
    digest = sha256_of_bytes(plan)
    return StartRecord(origin="model", step=0, weights_sha256="1" * 64, path=folder, digest=digest, frozen=list(frozen))


def ended(fence: int, step: int) -> SegmentRecord:
    """A segment that trained up to `step` and saved it."""
    return SegmentRecord(
        fence=fence, outcome="budget", cause="", first_step=0, last_step=step, world_size=1,
        planned_steps=1000, started_at=0.0,
        seconds=0.0, steps_lost=0, phases={},
    )  # fmt: skip
