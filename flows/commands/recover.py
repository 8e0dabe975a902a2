"""The command `recover`: going on with a run in a way that it never takes by itself, once a person agrees.

Invariant: what is replaced stays; nothing is changed before somebody said yes.
"""

import sys

import typer

from storage.errors import ConfigurationError
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from tasks.recovering.damaged_head import describe_recovery, plan_recovery, recover
from tasks.recovering.from_start import begin_from_start, describe_loss


def recover_damaged_head(store: Store, run: str, is_agreed: bool) -> None:
    """Go on from the newest sound entry of the manifest. Raises `ConfigurationError` unless somebody agrees."""
    plan = plan_recovery(store, run)
    if plan is None:
        print(f"Nothing to recover: the newest entry of the manifest of {run_address(store, run)} is sound.")
        return
    print(describe_recovery(plan))
    require_agreement(f"Go on from generation {plan.sound.generation}?", is_agreed)
    head = recover(store, run, plan)
    print(f"Generation {head.generation} says where the run stands. `holdfast run` goes on from there.")


def begin_anew_at_step_0(store: Store, run: str, is_agreed: bool) -> None:
    """Give up all checkpoints of a run. Raises `ConfigurationError` unless somebody agrees, `RunBusyError`."""
    manifest = Manifest(store, run)
    print(describe_loss(manifest))
    require_agreement("Begin anew at step 0?", is_agreed)
    begin_from_start(manifest)
    print("The run begins at step 0 when it starts next. The files stay until `holdfast prune --set-aside`.")


def require_agreement(question: str, is_agreed: bool) -> None:
    """Raise `ConfigurationError` unless a person agrees, now or by `--yes`."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("Nothing was changed: nobody is there to ask. Give --yes to agree.")
    if not typer.confirm(question):
        raise ConfigurationError("Nothing was changed.")
