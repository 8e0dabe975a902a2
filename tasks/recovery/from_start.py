"""Beginning a run anew at step 0, which nothing but a person decides.

Invariant: nothing is deleted: what is given up keeps its files until `holdfast prune --quarantined`.
"""

from storage.errors import RunBusyError
from storage.objects.addresses import run_address
from storage.runs.manifest import Generation, Manifest
from storage.runs.rollbacks.quarantine import begin_anew
from storage.runs.run_state import RunState
from tasks.text import count_of

REASON = "A person had the run begin anew at step 0, by `holdfast recover --from-start`."


def describe_loss(manifest: Manifest) -> str:
    """What would be lost. Raises `RunMissingError`, `RunBusyError` while a process holds the run."""
    state = manifest.load_head().state
    if state.lease is not None:
        raise RunBusyError(
            f"A process holds run {state.run!r}, or one that was killed did: `holdfast status "
            f"{run_address(manifest.store, state.run)}` says which. Stop it, or start the run once, so that what it "
            "left is settled. Nothing was changed."
        )
    return _describe(state)


def begin_from_start(manifest: Manifest) -> Generation:
    """Have the run begin at step 0 when it starts next. Raises `RunBusyError`."""
    return manifest.commit("begins anew, as a person asked", begin_anew(REASON))


def _describe(state: RunState) -> str:
    steps = sorted({*(record.step for record in state.kept), *(record.step for record in state.quarantined)})
    if not steps:
        return f"Run {state.run!r} has no checkpoint: nothing would be lost."
    named = ", ".join(f"{step:,}" for step in steps)
    point = f"step {state.promoted.step:,}" if state.promoted is not None else "none that can be used"
    return (
        f"Run {state.run!r} has {count_of(len(steps), 'checkpoint')}, of step {named}; its resume point is {point}. To "
        f"begin anew gives them up: all steps up to {steps[-1]:,} are trained again. To go on from them instead, bring "
        "the disk, the mount or the bucket back, or restore the files from a backup, and start the run: it looks at "
        "them again."
    )
