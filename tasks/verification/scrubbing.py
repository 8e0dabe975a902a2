"""Looking for rot: every byte that a resume or an audit of these runs would need is read from where it is durable.

That is the checkpoints that are kept, ledger and history that they vouch for, the weights that a run began with, and
the data sets. Invariant: what
training deletes meanwhile is no rot: a checkpoint is called damaged only if the manifest, read again afterwards, still
keeps it.
A damaged checkpoint of a run that is not in training is quarantined, so that the next resume loses no time over it; all
else is reported and left as it is, also one that cannot be read: the next start of the run looks at it for longer than
a scrub.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from storage.checkpoints.rereading import (
    REREAD_SECONDS,
    Rereader,
    find_newest_history,
    find_newest_part,
    promises_of_dataset,
)
from storage.datasets import MANIFEST_NAME, dataset_key, find_dataset, load_dataset
from storage.errors import (
    ConfigurationError,
    ConflictError,
    CorruptManifestError,
    CorruptObjectError,
    IncompatibleRunError,
    ObjectUnreadableError,
    RunMissingError,
)
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Manifest, find_runs
from storage.runs.rollbacks.quarantine import quarantine
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.console.announce import warn
from tasks.prefect_bridge.alerts import ROT, alert
from tasks.reporting.quarantined import describe_setback

# What becomes of damage, and what a person can do about it.
ADVICE = {
    "manifest": "`holdfast recover` with the run's address goes on from the entry before it, if you agree.",
    "checkpoint": "A process holds the run's lease, one that trains it or one that was killed (`holdfast status` shows "
    "which), so nothing was quarantined: the next start of the run goes by the newest valid checkpoint.",
    "unreadable": "Nothing was quarantined: the next start of the run looks at it again, and waits for it, before it "
    "goes by an older one.",
    "ledger": "The model is not touched by this, but an audit cannot prove these steps any more.",
    "start": "A run needs its first weights only while it has no valid checkpoint. Restore them from a backup of the "
    "store.",
    "frozen": "Every checkpoint of the run needs them, as it has only the weights that are trained. Restore them from "
    "a backup of the store: without them the run can neither go on nor be evaluated or exported.",
    "history": "Training and its model are not touched by this, but a report cannot show these steps any more.",
    "dataset": "Restore these files from a backup of the store. Without a backup: delete the data set's folder and run "
    "`holdfast run` again, with the versions of the libraries that prepared it: from the same source it is prepared "
    "again, byte for byte. By other versions it may become another data set, which its runs refuse.",
}
MISREAD = (
    "Objects that were read wrong the first time and right the second time: {count}. So the store is not damaged: "
    "check the memory and the network of this machine."
)
QUARANTINED = "It was quarantined."


@dataclass(frozen=True)
class Rot:
    """A damaged thing: its address, the run it belongs to, and each object of it that is not what it must be."""

    kind: Literal["manifest", "checkpoint", "ledger", "history", "start", "dataset"]
    run: str
    resource: str
    broken: list[str]
    step: int | None = None
    is_quarantined: bool = False
    setback: str | None = None  # what it means for the run that a checkpoint was quarantined
    is_unreadable: bool = False  # missing, or not to be read just now
    is_needed_always: bool = False  # first weights, of which checkpoints have only a part
    is_replaced: bool = False  # a data set that is sound, and not the one that the run was begun with

    @property
    def message(self) -> str:
        if self.is_replaced:
            return self.broken[0]
        what = f"The {self.kind} {self.resource}" + (f" of step {self.step:,}" if self.step is not None else "")
        kind: str = "unreadable" if self.kind == "checkpoint" and self.is_unreadable else self.kind
        kind = "frozen" if self.is_needed_always else kind
        advice = " ".join(filter(None, [QUARANTINED, self.setback])) if self.is_quarantined else ADVICE[kind]
        found = "cannot be read" if self.is_unreadable else "is damaged"
        return f"{what} {found}. {' '.join(self.broken)} {advice}"


@dataclass
class Scrub:
    """One pass over some runs of a store; what it found."""

    reader: Rereader
    rot: list[Rot] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    num_checkpoints: int = 0
    _parts: set[str] = field(default_factory=set)
    _datasets: set[tuple[str, str | None]] = field(default_factory=set)

    @property
    def store(self) -> Store:
        return self.reader.store

    def look_at(self, run: str) -> None:
        """Read all that a run needs. Raises `RunMissingError`, `IncompatibleRunError` or `StoreError`."""
        manifest = Manifest(self.store, run)
        try:
            state = manifest.load_head().state
        except (CorruptManifestError, ObjectUnreadableError) as error:
            self._report(Rot("manifest", run, f"{run_address(self.store, run)}/manifest", [str(error)]))
            self.runs.append(run)
            return
        self.reader.reread_seconds = reread_seconds(state)
        for record in state.kept:
            self._look_at_checkpoint(manifest, record)
        for record in state.kept:
            self._look_at_ledger(run, record)
        self._look_at_segments(state)
        self._look_at_start(state)
        self._look_at_dataset(state)
        self.runs.append(run)

    def _look_at_checkpoint(self, manifest: Manifest, record: CheckpointRecord) -> None:
        broken = self.reader.find_broken_files(record)
        state = manifest.load_head().state
        if record not in state.kept:
            return  # deleted while it was read
        self.num_checkpoints += 1
        if not broken:
            self._look_at_history(manifest.run, record)
        else:
            words, is_unreadable = [promise.message for promise in broken], all(p.is_unreadable for p in broken)
            is_left = is_unreadable or state.lease is not None
            after = None if is_left else _quarantine(manifest, record, " ".join(words))
            setback = describe_setback(after) if after is not None else None
            address = f"{self.store.address}/{record.path}"
            rot = Rot("checkpoint", manifest.run, address, words, record.step, after is not None, setback)
            self._report(replace(rot, is_unreadable=is_unreadable))

    def _look_at_ledger(self, run: str, record: CheckpointRecord) -> None:
        try:
            newest = find_newest_part(self.store, record)
        except (CorruptObjectError, ObjectUnreadableError):
            return  # damaged, which was reported, or deleted meanwhile
        broken = self.reader.find_broken_part(newest, self._parts)
        if broken is not None:
            self._report(Rot("ledger", run, f"{self.store.address}/{broken.key}", [broken.message]))

    def _look_at_history(self, run: str, record: CheckpointRecord) -> None:
        try:
            newest = find_newest_history(self.store, record)
        except (CorruptObjectError, ObjectUnreadableError):
            return  # damaged, which was reported, or deleted meanwhile
        broken = self.reader.find_broken_history(newest, self._parts)
        if broken is not None:
            self._report(Rot("history", run, f"{self.store.address}/{broken.key}", [broken.message]))

    def _look_at_segments(self, state: RunState) -> None:
        """Those that the manifest keeps in parts: a process that has read them before does not read them again."""
        broken = self.reader.find_broken_history(state.earlier_segments, self._parts)
        if broken is not None:
            self._report(Rot("manifest", state.run, f"{self.store.address}/{broken.key}", [broken.message]))

    def _look_at_start(self, state: RunState) -> None:
        broken = self.reader.find_broken_start(state.start) if state.start is not None else []
        if broken and state.start is not None:
            words = [promise.message for promise in broken]
            is_needed = bool({promise.key for promise in broken} & {file.key for file in state.start.frozen})
            address = f"{self.store.address}/{state.start.path}"
            self._report(Rot("start", state.run, address, words, is_needed_always=is_needed))

    def _look_at_dataset(self, state: RunState) -> None:
        """Once, however many runs have it: the first of them stands for all."""
        dataset = (state.dataset_digest, state.dataset_sha256)
        if dataset in self._datasets:
            return
        self._datasets.add(dataset)
        address = f"{self.store.address}/{dataset_key(state.dataset_digest).rstrip('/')}"
        broken = self._find_broken_shards(state)
        if broken:
            self._report(Rot("dataset", state.run, address, broken))
            return
        try:
            load_dataset(self.store, state.dataset_digest, state.dataset_sha256)
        except IncompatibleRunError as error:
            self._report(Rot("dataset", state.run, address, [str(error)], is_replaced=True))

    def _find_broken_shards(self, state: RunState) -> list[str]:
        try:
            dataset = find_dataset(self.store, state.dataset_digest)
        except CorruptObjectError as error:
            return [str(error)]
        if dataset is None:
            return [f"{dataset_key(state.dataset_digest, MANIFEST_NAME)} is missing."]
        return [broken.message for broken in self.reader.find_broken_shards(dataset)]

    def _report(self, rot: Rot) -> None:
        self.rot.append(rot)
        alert(
            ROT, rot.resource, rot.message, run=rot.run, kind=rot.kind, step=rot.step, is_quarantined=rot.is_quarantined
        )


def scrub_store(
    store: Store,
    run: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
    max_bytes_per_second: float | None = None,
) -> dict[str, Any]:
    """Look at one run, or at all of a store; what was read and what is damaged, JSON-able. Damage was reported by then.

    Of all runs, those of another version's format are left out and named. Raises `StoreError` if the store cannot be
    read, `ConfigurationError` if it has no runs; and for one run `RunMissingError` or `IncompatibleRunError`.
    """
    scrub = Scrub(Rereader(store, on_bytes, max_bytes_per_second))
    if run is not None:
        scrub.look_at(run)
    for name in [] if run is not None else require_runs(store):
        try:
            scrub.look_at(name)
        except (IncompatibleRunError, RunMissingError) as error:
            scrub.skipped[name] = str(error)
    if scrub.reader.num_misread:
        warn(MISREAD.format(count=scrub.reader.num_misread))
    return _describe(scrub)


def require_runs(store: Store) -> list[str]:
    """The names of all runs of a store. Raises `ConfigurationError` if there are none."""
    runs = find_runs(store)
    if not runs:
        raise ConfigurationError(
            f"There are no runs in {store.address}. Give a store that has some, or a run's address STORE/runs/NAME."
        )
    return runs


def expect_bytes(store: Store, run: str | None) -> int:
    """About how many bytes such a scrub reads: checkpoints and shards, without the small things beside them."""
    num_bytes, digests = 0, set[str]()
    for name in find_runs(store) if run is None else [run]:
        try:
            state = Manifest(store, name).load_head().state
            dataset = None if state.dataset_digest in digests else find_dataset(store, state.dataset_digest)
        except (CorruptManifestError, CorruptObjectError, ObjectUnreadableError, IncompatibleRunError, RunMissingError):
            continue  # reported by the scrub itself
        digests.add(state.dataset_digest)
        num_bytes += sum(record.num_bytes for record in state.kept)
        num_bytes += sum(file.num_bytes for file in state.start.frozen) if state.start else 0
        num_bytes += sum(promise.num_bytes or 0 for promise in promises_of_dataset(dataset)) if dataset else 0
    return num_bytes


def reread_seconds(state: RunState) -> float:
    """After how long what is wrong with this run's objects is read again: its own `retry.reread_seconds`."""
    retry = state.config.get("retry")
    return float(retry.get("reread_seconds", REREAD_SECONDS)) if isinstance(retry, dict) else REREAD_SECONDS


def _quarantine(manifest: Manifest, record: CheckpointRecord, reason: str) -> RunState | None:
    """Take a damaged checkpoint out of use; None if a process took the run up meanwhile, which looks by itself."""
    change = quarantine(record.step, record.path, reason, fence=None)
    try:
        return manifest.commit(f"quarantined step {record.step}", change).state
    except ConflictError:
        return None


def _describe(scrub: Scrub) -> dict[str, Any]:
    return {
        "store": scrub.store.address,
        "ok": not scrub.rot,
        "runs": scrub.runs,
        "checkpoints": scrub.num_checkpoints,
        "objects": scrub.reader.num_objects,
        "bytes": scrub.reader.num_bytes,
        "misread": scrub.reader.num_misread,
        "damaged": [asdict(rot) | {"message": rot.message} for rot in scrub.rot],
        "skipped": scrub.skipped,
    }
