"""`holdfast recover`: going on with a run in a way that it never takes by itself, once a person agrees.

Invariant: what is replaced stays; nothing is changed before a person has agreed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import Assignments, RunArgument, find_run
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.objects.addresses as addresses
    import storage.runs.manifest as manifests
    import tasks.recovery.damaged_head as damaged_head
    import tasks.recovery.from_start as from_start

if TYPE_CHECKING:
    from storage.objects.store import Store


def recover(
    run: RunArgument,
    assignments: Assignments = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Give up all checkpoints of the run: it begins anew at step 0.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what is shown, without being asked.")] = False,
) -> None:
    """Go on with a run whose newest manifest entry is damaged.

    Shows from which entry before it the run can go on and what would be lost, asks, and does it. What is damaged stays
    where it is. A run whose manifest is sound is left alone. With --from-start, for a run of which no checkpoint can be
    used any more: it begins anew.
    """
    go_on = begin_anew_at_step_0 if from_start else recover_damaged_head
    go_on(*find_run(run, assignments or []), yes)


def recover_damaged_head(store: Store, run: str, is_agreed: bool) -> None:
    """Go on from the newest sound entry of the manifest. Raises `ConfigurationError` unless a person agrees."""
    plan = damaged_head.plan_recovery(store, run)
    if plan is None:
        print(f"Nothing to recover: the newest entry of the manifest of {addresses.run_address(store, run)} is sound.")
        return
    print(damaged_head.describe_recovery(plan))
    require_agreement(f"Go on from generation {plan.sound.generation}?", is_agreed)
    head = damaged_head.recover(store, run, plan)
    print(f"Generation {head.generation} records where the run stands. `holdfast run` goes on from there.")


def begin_anew_at_step_0(store: Store, run: str, is_agreed: bool) -> None:
    """Give up all checkpoints of a run. Raises `ConfigurationError` unless a person agrees, `RunBusyError`."""
    manifest = manifests.Manifest(store, run)
    print(from_start.describe_loss(manifest))
    require_agreement("Begin anew at step 0?", is_agreed)
    from_start.begin_from_start(manifest)
    print("The run begins at step 0 when it starts next. The files stay until `holdfast prune --quarantined`.")


def require_agreement(question: str, is_agreed: bool) -> None:
    """Raise `ConfigurationError` unless a person agrees, now or by `--yes`."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("Nothing was changed: there is no terminal to ask at. Give --yes to agree.")
    if not typer.confirm(question):
        raise ConfigurationError("Nothing was changed.")
