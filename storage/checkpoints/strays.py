"""Checkpoint folders that no run can use: saves cut off, steps that were never promoted, deletions cut off.

Invariant: judged by one generation of the manifest alone. A folder is a stray when the manifest does not name it and
its checkpoint cannot be promoted any more, which stays so in every later generation: so any process may delete strays,
at any time, and the next one that deletes finishes what another began.
"""

from storage.checkpoints.checkpoints import delete_checkpoint, list_checkpoint_paths
from storage.checkpoints.reading import find_held
from storage.objects.store import Store
from storage.runs.manifest import Generation
from storage.runs.run_state import RunState


def find_strays(store: Store, head: Generation) -> list[str]:
    """Folders of all strays that are not being read, in the order of their steps."""
    state = head.state
    named = {record.path for record in state.kept} | {r.path for r in state.quarantined if not r.is_discarded}
    named |= {record.checkpoint.path for record in state.rejected if not record.is_discarded}
    discarded = {record.checkpoint.path for record in state.rejected if record.is_discarded}
    strays = [
        path
        for path, step, fence in list_checkpoint_paths(store, state.run)
        if path in discarded or (path not in named and not _may_be_promoted(state, head.generation, step, fence))
    ]
    # Asked after `head` was committed, and only where something is to be deleted.
    held = find_held(store, state.run) if strays else frozenset()
    return [path for path in strays if path not in held]


def delete_strays(store: Store, head: Generation) -> None:
    """Delete all strays: with them what `head` no longer names."""
    for path in find_strays(store, head):
        delete_checkpoint(store, path)


def _may_be_promoted(state: RunState, generation: int, step: int, fence: int) -> bool:
    """Whether a checkpoint can still become the resume point: its lease is not over, and promotions move forward.

    A fence is the generation that granted the lease: one above `generation` came later, and is not ours to judge.
    """
    if state.lease is None or fence != state.lease.fence:
        return fence > generation
    return state.promoted is None or (step, fence) > (state.promoted.step, state.promoted.fence)
