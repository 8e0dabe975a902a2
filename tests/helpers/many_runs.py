"""Many runs of several teams, written but not trained: in training, silent, waiting, failed, completed.

Invariant: each is made of the records that training leaves, and read as any other; what state it is in follows from its
number alone.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.run_state import Lease, RunState, ValidationFigures
from storage.runs.segments import Heartbeat, write_heartbeat
from tests.helpers.finished_runs import segments_of, state_of

TEAMS = ("search", "support", "risk-and-compliance")
STEPS = 20_000
FENCE = 16
SAVE_SECONDS = 600.0
# How long ago each wrote its last, where that is not a minute.
SECONDS_AGO = {"training": 3.0, "silent": 3_600.0, "failed": 7_200.0, "completed": 86_400.0}
# In turn. Most runs of a day are in training or over.
KINDS = ("training", "completed", "training", "waiting", "training", "silent", "completed", "failed", "training", "new")


def write_many_runs(folder: Path, num_runs: int) -> list[LocalStore]:
    """So many runs, in a store for each team."""
    stores = [LocalStore(folder / f"teams/{team}/holdfast") for team in TEAMS]
    for number in range(num_runs):
        store = stores[number % len(stores)]
        team = TEAMS[number % len(TEAMS)]
        write_run(store, f"{team}-intents-{number:02d}", KINDS[number % len(KINDS)], number, f"{team} team")
    return stores


def write_run(store: LocalStore, run: str, kind: str, number: int = 0, owner: str | None = None) -> None:
    """One run, which is `training`, `silent`, `waiting`, `failed`, `completed` or `new`."""
    written_at = time.time() - SECONDS_AGO.get(kind, 60.0)
    state = _state(run, kind, number, written_at)
    if owner is not None:
        state = state.model_copy(update={"config": state.config | {"owner": owner}})
    if state.lease is not None:
        write_heartbeat(store, run, FENCE, _heartbeat(state.lease.first_step + 120, written_at))
    with patch("storage.runs.manifest.time", SimpleNamespace(time=lambda: written_at)):
        Manifest(store, run).create(state)


def _state(run: str, kind: str, number: int, now: float) -> RunState:
    """As it was at the Unix time `now`."""
    last_step = {"completed": STEPS, "new": 0}.get(kind, 1_000 + 350 * number)
    ends = [("preempted", "SIGTERM", last_step // 2, 0), _last_end(kind, last_step)] if last_step else []
    segments = segments_of(ends, 0.6)
    moved = now - segments[-1].started_at - segments[-1].seconds if segments else 0.0
    segments = [one.model_copy(update={"started_at": one.started_at + moved}) for one in segments]
    state = state_of(run, STEPS, segments)
    train = {"steps": STEPS, "learning_rate": 0.001, "batch_size": 256}
    changes: dict[str, Any] = {
        "created_at": segments[0].started_at - 60 if segments else now,
        "config": state.config | {"train": train, "checkpoint": {"every_seconds": SAVE_SECONDS}},
    }
    if state.promoted is not None:
        promoted = state.promoted.model_copy(update={"promoted_at": now - 400, "metric": 0.7})
        changes |= {"promoted": promoted, "kept": [promoted]}
    if kind in ("training", "silent"):
        elsewhere = this_process().model_copy(update={"host": f"gpu-host-{number:02d}", "pid_scope": "another boot"})
        began = {"first_step": last_step, "planned_steps": STEPS, "taken_at": now - 500}
        changes["lease"] = Lease.model_validate({"fence": FENCE, "holder": elsewhere, "world_size": 4, **began})
    if kind == "completed":
        changes |= {"metrics": {"loss": 0.31, "macro_f1": 0.86 + number / 1000}, "metrics_step": STEPS}
    return state.model_copy(update=changes)


def _last_end(kind: str, last_step: int) -> tuple[str, str, int, int]:
    if kind == "failed":
        cause = "rank 1 on gpu-host-07 ended with an error: CUDA error: an illegal memory access was encountered"
        return "failed", cause, last_step, 137
    return ("completed", "", last_step, 0) if kind == "completed" else ("budget", "budget of 3600 s", last_step, 0)


def _heartbeat(step: int, written_at: float) -> Heartbeat:
    found = ValidationFigures(metric="macro_f1", value=0.8123, step=step - 120, best_value=0.8123, best_step=step - 120)
    figures = {"loss": 0.4321, "samples_per_second": 2_400.0, "validation": found}
    return Heartbeat(beat=9, step=step, written_at=written_at, **figures)
