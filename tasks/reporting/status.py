"""The status of a run: from its manifest, and from the heartbeat of who trains it on a machine that is not this one.

Invariant: reads only; a status never changes a run, and needs neither the user's data nor a Prefect server.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.checkpoints.results import find_evaluation
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.holders import is_alive
from storage.runs.manifest import Generation, Manifest
from storage.runs.run_state import CheckpointRecord, Lease, RunState, SegmentRecord, Throughput, ValidationFigures
from storage.runs.segments import find_heartbeat
from tasks.baselines.record import find_baseline
from tasks.cluster.orders import read_node_statuses
from tasks.reporting.baseline import warn_of_baseline
from tasks.reporting.best import describe_best, describe_overfitting, headline_name
from tasks.reporting.changes import describe_change, describe_other_holdfast
from tasks.reporting.goodput import CLOCK_SECONDS, describe_clock, sum_up_time
from tasks.reporting.quarantined import describe_quarantined, describe_setback
from tasks.reporting.rollbacks import describe_rollbacks
from tasks.reporting.slices import describe_slices
from tasks.reporting.views import describe_views
from tasks.supervision.standing_still import SILENCE_SECONDS, describe_stopped
from tasks.text import duration, moment, plain
from training.agents.locks import find_holders


def read_status(store: Store, run: str) -> dict[str, Any]:
    """The run's status, JSON-able, with the linear model beside it. Raises `RunMissingError`."""
    head = Manifest(store, run).load_head()
    baseline = find_baseline(store, head.state) if head.state.headline is not None else None
    warning = warn_of_baseline(head.state, baseline)
    return describe_status(store, head) | {"baseline": baseline and baseline | {"warning": warning}}


def describe_status(store: Store, head: Generation) -> dict[str, Any]:
    """The status of a run whose newest generation is `head`, JSON-able, without looking for its linear model."""
    state, run = head.state, head.state.run
    life, now = _read_life(store, state, state.lease) if state.lease is not None else None, time.time()
    return {
        "run": run,
        "address": run_address(store, run),
        "owner": find_owner(state),
        "state": life["state"] if life else describe_state(state),
        "holder": life,
        "step": state.promoted.step if state.promoted else 0,
        "steps_total": state.steps_total,
        "by_rows": state.by_rows.model_dump(mode="json") if state.by_rows else None,
        "ended_early": state.segments[-1].cause if state.ended_early else None,
        "live_step": _find_live_step(state, life),
        "live": _find_live_figures(state, life),
        "promoted": _describe_checkpoint(store, state.promoted) if state.promoted else None,
        "kept": [_describe_checkpoint(store, record) for record in state.kept],
        "quarantined": [
            {**record.model_dump(mode="json"), "description": words}
            for record, words in zip(state.quarantined, describe_quarantined(state), strict=True)
        ],
        "setback": describe_setback(state) if state.lease is None else None,
        "segments": [_describe_segment(record) for record in state.segments],
        "rollbacks": [
            {**record.model_dump(mode="json"), "description": words}
            for record, words in zip(state.rollbacks, describe_rollbacks(state.rollbacks), strict=True)
        ],
        "changes": [
            {**record.model_dump(mode="json"), "description": describe_change(record)} for record in state.changes
        ],
        "other_holdfast": describe_other_holdfast(state),
        "rejected": [record.model_dump(mode="json") for record in state.rejected],
        "steps_lost_total": state.steps_lost,
        "steps_lost_is_least": state.steps_lost_is_least,
        "time": _describe_time(state, now),
        "clock": describe_clock(state, now) or _describe_clock_ahead(life, now),
        "dataset_digest": state.dataset_digest,
        "metrics": state.headline.metrics if state.headline else None,
        "metrics_step": state.headline.step if state.headline else None,
        "last_metrics": state.metrics,
        "slices": [
            {**found, "description": describe_slices(found, headline_name(state))}
            for found in _find_slices(store, state)
        ],
        "best": describe_best(state),
        "overfitting": describe_overfitting(state),
        "baseline": None,
        "generation": head.generation,
        "last_sign_of_life_at": max(head.written_at, life["last_sign_of_life_at"] if life else 0.0),
    }


def find_owner(state: RunState) -> str | None:
    """Whose the run is, by the configuration with which it was started last; None where that does not say."""
    owner = state.config.get("owner")
    # Who can write to the store may have written anything there.
    return plain(owner) if isinstance(owner, str) else None


def describe_state(state: RunState) -> str:
    """One word for a run that is not in training: completed, trained (not yet tested), rejected, or how it ended last.

    For one whose lease is held: running, or lost where it is seen that the holder is dead.
    """
    if state.lease is not None:
        return "lost" if is_alive(state.lease.holder) is False else "running"
    if state.is_complete:
        return "completed"
    if state.is_trained:
        return "trained"
    if not state.segments:
        return "created"
    if state.is_rejected:
        return "rejected"
    outcome = state.segments[-1].outcome
    # The last segment came to the end, but the run did not: more steps were asked for, or a checkpoint was damaged.
    return "stopped" if outcome == "completed" else outcome


def _read_life(store: Store, state: RunState, lease: Lease) -> dict[str, Any]:
    """What is known of the process that holds the lease: running, lost, or `silent` by the time of its heartbeat.

    On another machine no process can be seen. Silence is counted by two clocks, that machine's and this one's. On this
    one a process that lives is silent if it was stopped, which `stopped` describes.
    """
    holder, heartbeat = lease.holder, find_heartbeat(store, state.run, lease.fence)
    # Without a heartbeat, the lease alone was a sign of life.
    seen_at = heartbeat.written_at if heartbeat is not None else lease.taken_at
    silent_seconds = max(0.0, time.time() - seen_at)
    word, is_here = describe_state(state), is_alive(holder) is not None
    stopped = describe_stopped(store, state.run, lease)
    if stopped or (not is_here and silent_seconds > SILENCE_SECONDS):
        word = "silent"
    return {
        "state": word,
        "host": holder.host,
        "pid": holder.pid,
        "ranks": _find_ranks(store, state, lease, is_here),
        "is_on_this_machine": is_here,
        "work": lease.work,
        "holdfast": lease.holdfast.model_dump(mode="json") if lease.holdfast is not None else None,
        "step": heartbeat.step if heartbeat is not None else lease.first_step,
        "loss": heartbeat.loss if heartbeat is not None else None,
        "samples_per_second": heartbeat.samples_per_second if heartbeat is not None else None,
        "validation": heartbeat.validation.model_dump(mode="json")
        if heartbeat is not None and heartbeat.validation is not None
        else None,
        "deaths": describe_views(heartbeat.views, heartbeat.view_totals) if heartbeat is not None else None,
        "last_sign_of_life_at": seen_at,
        "silent_seconds": silent_seconds,
        "stopped": stopped,
    }


def _find_ranks(store: Store, state: RunState, lease: Lease, is_here: bool) -> list[dict[str, Any]]:
    """The segment's ranks with process and host: those that live on this machine, or that a cluster's nodes tell of."""
    if lease.job is not None:
        told = read_node_statuses(store, state.run, lease.fence)
        return [{"rank": one.rank, "pid": one.pid, "host": one.host} for one in told]
    if not is_here or lease.scratch is None:
        return []
    found = find_holders(Path(lease.scratch))
    return [asdict(one) for one in found if one.rank is not None]


def describe_silence(store: Store, state: RunState, lease: Lease) -> str | None:
    """Why a holder that cannot be seen from this machine is most likely gone; None while it gives signs of life."""
    life = _read_life(store, state, lease)
    return describe_holder(life) if life["state"] == "silent" and not life["is_on_this_machine"] else None


def _find_live_step(state: RunState, life: dict[str, Any] | None) -> int | None:
    """What the ranks of a segment under way last reported; `holder.silent_seconds` is how old that is."""
    if life is None or life["work"] != "train" or life["state"] == "lost":
        return None
    reported: int = life["step"]
    return max(reported, state.promoted.step if state.promoted else 0)  # a promotion may be newer than the heartbeat


def _find_live_figures(state: RunState, life: dict[str, Any] | None) -> dict[str, Any] | None:
    """Loss, speed, time left and last validation of a segment under way, as its ranks last reported them."""
    step = _find_live_step(state, life)
    if life is None or step is None:
        return None
    speed, train = life["samples_per_second"], state.config.get("train")
    batch_size = train.get("batch_size") if isinstance(train, dict) else None
    left = (state.steps_total - step) * batch_size / speed if speed and isinstance(batch_size, int) else None
    figures = {name: life[name] for name in ("loss", "samples_per_second", "validation")}
    return figures | {"seconds_left": None if left is None else round(left, 1)}


def describe_live(live: dict[str, Any]) -> list[str]:
    """'loss 0.4321', '2,400 samples/s', '3 min left', and the last validation: what is known of them."""
    words = [] if live["loss"] is None else [f"loss {live['loss']:.4f}"]
    words += [] if live["samples_per_second"] is None else [f"{live['samples_per_second']:,.0f} samples/s"]
    words += [] if live["seconds_left"] is None else [f"{duration(live['seconds_left'])} left"]
    found = live["validation"]
    return words + ([] if found is None else [ValidationFigures.model_validate(found).describe()])


def describe_work(status: dict[str, Any]) -> str | None:
    """What is being done on the run right now: 'in training: step 1,240'; None if nothing is known to be done."""
    if status["state"] != "running":
        return None
    if status["live_step"] is None:
        return "in evaluation on the test split"
    return f"in training: step {status['live_step']:,}"


def describe_holder(life: dict[str, Any]) -> str:
    """A sentence about a holder that cannot be seen from this machine."""
    who = f"process {life['pid']} on {life['host']}"
    silence = duration(life["silent_seconds"])
    if life["state"] != "silent":
        return f"Held by {who}; its last heartbeat is {silence} old."
    return (
        f"No heartbeat from {who} for {silence}: the last one was on {moment(life['last_sign_of_life_at'])}, by its "
        f"machine's clock, at step {life['step']:,}. If the process is gone, `holdfast run` takes the run over: it "
        f"first waits up to {SILENCE_SECONDS:.0f} s for a new heartbeat."
    )


def _find_slices(store: Store, state: RunState) -> list[dict[str, Any]]:
    """Of the evaluation that `metrics` are of. It is read only if the run's configuration asks for slices."""
    validation, tested = state.config.get("validation"), state.headline
    if tested is None or not isinstance(validation, dict) or not validation.get("slices"):
        return []
    record = next((kept for kept in state.kept if kept.path == tested.path), None)
    evaluation = find_evaluation(store, record) or {}
    found: list[dict[str, Any]] = evaluation.get("slices", [])
    return found


def _describe_segment(record: SegmentRecord) -> dict[str, Any]:
    """A segment, JSON-able: what it measured stands beside what it did; None where it measured nothing."""
    unknown = dict.fromkeys(Throughput.model_fields)
    measured = record.throughput.model_dump() if record.throughput else unknown
    recorded = record.model_dump(mode="json", exclude={"phases", "throughput"})
    return {"state": "ended", **recorded, "steps_lost_is_least": record.steps_lost_is_least, **measured}


def _describe_time(state: RunState, now: float) -> dict[str, Any] | None:
    spent = sum_up_time(state, now)
    return None if spent is None else {"goodput": spent.goodput, "seconds": spent.parts}


def _describe_clock_ahead(life: dict[str, Any] | None, now: float) -> str | None:
    """That a sign of life is dated later than now: how old it is, is then not known."""
    if life is None or life["last_sign_of_life_at"] <= now + CLOCK_SECONDS:
        return None
    return (
        f"A machine's clock was wrong: by that of {life['host']} the last sign of life was on "
        f"{moment(life['last_sign_of_life_at'])}, but by the clock of this machine it is {moment(now)}. How old it "
        "is, is therefore not known. Set the clocks of the machines."
    )


def _describe_checkpoint(store: Store, record: CheckpointRecord) -> dict[str, Any]:
    return {
        "step": record.step,
        "path": f"{store.address}/{record.path}",
        "digest": record.digest,
        "weights_sha256": record.weights_sha256,
        "num_bytes": record.num_bytes,
        "metric": record.metric,
        "not_finite": record.not_finite.model_dump(mode="json") if record.not_finite else None,
        "promoted_at": record.promoted_at,
    }
