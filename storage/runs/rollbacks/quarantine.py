"""How a run goes on without a checkpoint, with it again, or without any: pure functions, as in `runs/transitions.py`.

Invariant: files are never deleted here, and what was quarantined or passed over may be taken back for as long as it
stands: until a rollback, or until a person has the run begin anew.
"""

import time
from collections.abc import Sequence
from typing import Literal

from storage.errors import ConflictError, RunBusyError
from storage.runs.manifest import require_fence
from storage.runs.run_records import ChangeRecord, QuarantineRecord
from storage.runs.run_state import CheckpointRecord, Lease, RunState
from storage.runs.transitions import Change


def quarantine(
    step: int, path: str, reason: str, fence: int | None, verdict: Literal["damaged", "unreadable"] = "damaged"
) -> Change:
    """Do not use a checkpoint that is damaged or cannot be read; the next older one becomes the resume point.

    One that turns out to be sound is used again: `take_back`.

    Only the holder of the lease `fence` may do so, or any process (None) while no lease is held: what looks missing to
    a process that comes late may have been deleted by the run's new holder. If it was the resume point that a segment
    was about to start from, the segment begins at the new one.

    Metrics of a later step than the new resume point are dropped: that step has to be reached again.
    """

    def change(state: RunState, _generation: int) -> RunState:
        if fence is not None:
            require_fence(state, fence)
        elif state.lease is not None:
            raise RunBusyError(f"Run {state.run!r} was just taken over by another process.")
        if any(entry.path == path for entry in state.quarantined) and all(entry.path != path for entry in state.kept):
            return state  # by an earlier call, whose answer was lost
        kept = [checkpoint for checkpoint in state.kept if checkpoint.path != path]
        digest = next((checkpoint.digest for checkpoint in state.kept if checkpoint.path == path), None)
        record = QuarantineRecord(
            step=step,
            path=path,
            reason=reason,
            quarantined_at=time.time(),
            verdict=verdict,
            digest=digest,
            num_rollbacks=len(state.rollbacks),
        )
        rejected = [entry for entry in state.rejected if entry.checkpoint.path != path]
        moved = moved_back(state, kept)
        update = {
            "quarantined": [*state.quarantined, record],
            "rejected": rejected,
            "lease": _begun_again(state, moved),
        }
        return moved.model_copy(update=update)

    return change


def take_back(checkpoint: CheckpointRecord, changes: Sequence[ChangeRecord] = ()) -> Change:
    """Use a checkpoint again that was quarantined or passed over and is sound: it is the resume point.

    `changes` are those since the resume point before. The lease must be free: raises `RunBusyError`, or
    `ConflictError` if it does not stand aside any more.
    """

    def change(state: RunState, _generation: int) -> RunState:
        _require_nobody(state)
        if all(record.path != checkpoint.path for record in find_standing(state)):
            raise ConflictError(f"Run {state.run!r} was continued by another process, without {checkpoint.path}.")
        update: dict[str, object] = {
            "quarantined": [record for record in state.quarantined if record.path != checkpoint.path],
            "kept": [checkpoint, *state.kept],
            "promoted": checkpoint,
            "rejected": [
                record
                for record in state.rejected
                if (record.checkpoint.step, record.checkpoint.fence) > (checkpoint.step, checkpoint.fence)
            ],
            "changes": [*state.changes, *changes],
        }
        return state.model_copy(update=update)

    return change


def begin_anew(reason: str) -> Change:
    """Have the run begin at step 0 because a person asked for it: what is kept and what stands aside is given up.

    All files stay until `holdfast prune --quarantined`. Raises `RunBusyError` while the lease is held.
    """

    def change(state: RunState, _generation: int) -> RunState:
        _require_nobody(state)
        before = [record.model_copy(update={"is_given_up": True}) for record in state.quarantined]
        given_up = [
            QuarantineRecord(
                step=checkpoint.step,
                path=checkpoint.path,
                reason=reason,
                quarantined_at=time.time(),
                digest=checkpoint.digest,
                num_rollbacks=len(state.rollbacks),
                is_given_up=True,
            )
            for checkpoint in [*state.kept, *(r.checkpoint for r in state.rejected if not r.is_discarded)]
        ]
        update = {"quarantined": [*before, *given_up], "rejected": []}
        return moved_back(state, []).model_copy(update=update)

    return change


def _require_nobody(state: RunState) -> None:
    if state.lease is not None:
        raise RunBusyError(f"Run {state.run!r} was just taken over by another process.")


def _begun_again(before: RunState, moved: RunState) -> Lease | None:
    """The lease of a segment whose resume point has moved back."""
    if before.lease is None or before.promoted == moved.promoted:
        return before.lease
    return before.lease.model_copy(update={"first_step": moved.promoted.step if moved.promoted else 0})


def moved_back(state: RunState, kept: list[CheckpointRecord]) -> RunState:
    """The state with only these checkpoints left, newest first. Metrics of a later step belong to nothing any more.

    Nor do changes: the steps after the new resume point are made again, and what they are made with is compared then.
    """
    step = kept[0].step if kept else 0
    changes = [record for record in state.changes if record.step < step]
    update: dict[str, object] = {"kept": kept, "promoted": kept[0] if kept else None, "changes": changes}
    if state.metrics_step is not None and (not kept or kept[0].step < state.metrics_step):
        update |= {"metrics": None, "metrics_step": None, "best_tested": None}
    return state.model_copy(update=update)


def find_standing(state: RunState) -> list[QuarantineRecord]:
    """What was quarantined or passed over and is used again if it turns out to be sound; the newest step first.

    Of steps after the resume point alone.
    """
    resume_step = state.promoted.step if state.promoted else -1
    standing = [
        record
        for record in state.quarantined
        if _stands(record, state) and not record.is_discarded and record.step > resume_step
    ]
    return sorted(standing, key=lambda record: record.step, reverse=True)


def has_lost_all(state: RunState) -> bool:
    """Whether the run had checkpoints, none is left to go on from, and neither a rollback nor a person decided so."""
    return state.promoted is None and any(
        record.digest is not None and _stands(record, state) for record in state.quarantined
    )


def _stands(record: QuarantineRecord, state: RunState) -> bool:
    return record.num_rollbacks == len(state.rollbacks) and not record.is_given_up
