"""Going on from the newest sound entry of a manifest whose newest ones are damaged.

The entry is put anew, behind the damaged ones, which stay where they are. Invariant: no number is used twice. So a
fence that a damaged entry may have granted is void, and its holder can promote nothing.
"""

import time
from dataclasses import dataclass
from pathlib import PurePosixPath

from storage.checkpoints.checkpoints import list_checkpoint_paths, load_checkpoint
from storage.errors import CorruptManifestError, CorruptObjectError, ObjectMissingError, RunMissingError, StoreError
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Generation, Manifest
from storage.runs.run_records import QuarantineRecord
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.text import how_far, listed, moment

REASON = "recorded by manifest entries alone that are damaged"


@dataclass(frozen=True)
class Recovery:
    """What going on from `sound` means. `damaged` are the addresses of the entries after it, up to that of `number`."""

    address: str
    number: int
    damaged: list[str]
    sound: Generation
    deleted: list[CheckpointRecord]  # what `sound` names, and an entry after it had deleted
    unnamed: list[tuple[str, int, int]]  # complete checkpoints that cannot be promoted then: path, step, fence
    waiting: list[int]  # steps of those that are promoted again when the run goes on

    @property
    def state(self) -> RunState:
        """Where the run stands then."""
        before, now = self.sound.state, time.time()
        kept = [record for record in before.kept if record not in self.deleted]
        unnamed = [
            QuarantineRecord(step=step, path=path, reason=REASON, quarantined_at=now) for path, step, _ in self.unnamed
        ]
        update = {"kept": kept, "quarantined": [*before.quarantined, *unnamed]}
        return before.model_copy(update=update)


def plan_recovery(store: Store, run: str) -> Recovery | None:
    """What would follow; None if the newest entry is sound. Raises `RunMissingError`, `CorruptManifestError`."""
    manifest, damaged = Manifest(store, run), list[str]()
    addresses = manifest.list_addresses()
    if not addresses:
        raise RunMissingError(f"There is no run {run!r} in {store.address}. Check `run` and `store`.")
    newest = _number_of(addresses[-1])
    for address in reversed(addresses):
        try:
            sound = manifest.load_generation(_number_of(address))
        except CorruptManifestError:
            damaged.insert(0, address)
        else:
            return _plan(store, newest, damaged, sound) if damaged else None
    raise CorruptManifestError(
        f"No entry of the manifest of run {run!r} can be read, of {len(addresses):,}. Restore the folder "
        f"{run_address(store, run)}/manifest from a backup of the store. Nothing was changed."
    )


def recover(store: Store, run: str, plan: Recovery) -> Generation:
    """Do it. Raises `ConflictError` if a process went on with the run since it was planned."""
    numbers = [_number_of(address) for address in plan.damaged]
    event = f"gone on from generation {plan.sound.generation}, as {listed(map(str, numbers))} cannot be read"
    return Manifest(store, run).commit_after(plan.number, event, plan.state)


def describe_recovery(plan: Recovery) -> str:
    """What is damaged, what is lost, what follows: for the person who has to agree."""
    state, sound = plan.sound.state, plan.sound
    point = state.promoted.step if state.promoted else 0
    lines = [
        f"Damaged, of the manifest of {plan.address}: {listed(PurePosixPath(one).name for one in plan.damaged)}.",
        f"The newest sound entry is generation {sound.generation} ({sound.event}, {moment(sound.written_at)}).",
        f"Going on from it, the run stands at {how_far(point, state)}.",
        f"Lost: what the damaged {'entry' if len(plan.damaged) == 1 else 'entries'} recorded.",
    ]
    if plan.waiting:
        lines.append(f"Promoted again when the run goes on, if sound: step {listed(f'{s:,}' for s in plan.waiting)}.")
    if plan.unnamed:
        steps = listed(f"{step:,}" for _, step, _ in plan.unnamed)
        lines.append(
            f"Lost with it: the checkpoint of step {steps}, which no sound entry knows of. It is quarantined: its "
            "files stay until `holdfast prune --quarantined`."
        )
    if plan.deleted:
        steps = listed(f"{record.step:,}" for record in plan.deleted)
        lines.append(f"Not kept any more, as a damaged entry had it deleted: the checkpoint of step {steps}.")
    lines.append(
        "Steps after the resume point are trained again, with the same result. A process that trains under an entry "
        "that is lost can promote nothing any more. The damaged files stay where they are."
    )
    return "\n".join(lines)


def _plan(store: Store, newest: int, damaged: list[str], sound: Generation) -> Recovery:
    state = sound.state
    older = [record for record in state.kept if record != state.promoted]
    deleted = [record for record in older if not any(True for _ in store.list_keys(f"{record.path}/"))]
    named = {record.path for record in state.kept} | {record.path for record in state.quarantined}
    named |= {entry.checkpoint.path for entry in state.rejected}
    position = (state.promoted.step, state.promoted.fence) if state.promoted else (0, 0)
    later = [one for one in list_checkpoint_paths(store, state.run) if one[0] not in named and one[1:] > position]
    complete = [one for one in later if _is_complete(store, one[0])]
    fence = state.lease.fence if state.lease else None
    return Recovery(
        address=run_address(store, state.run),
        number=newest,
        damaged=damaged,
        sound=sound,
        deleted=deleted,
        unnamed=[one for one in complete if one[2] != fence],
        waiting=[step for _, step, of in complete if of == fence],
    )


def _is_complete(store: Store, path: str) -> bool:
    try:
        load_checkpoint(store, path)
    except (CorruptObjectError, ObjectMissingError):
        return False
    except StoreError:
        return True  # who cannot read it now leaves it where it is
    return True


def _number_of(address: str) -> int:
    return int(PurePosixPath(address).stem)
