"""Why a run needs a person: what does not go on by itself, in a sentence or two that say what to do.

Invariant: follows from the run's status alone, and is None wherever the run goes on by itself, or may: one that ended
with an error a moment ago is most likely being tried again.
"""

import time
from collections.abc import Mapping
from typing import Any

from tasks.reporting.status import describe_holder
from tasks.text import duration

# A retry of the flow follows within seconds, and a schedule's next flow run within minutes.
UNATTENDED_SECONDS = 600.0
GO_ON = "`holdfast run` goes on from step {step:,}."


def describe_need(status: Mapping[str, Any]) -> str | None:
    """Of a status as `read_status` returns it: why a person has to look at the run, and what to do; None if not."""
    if status["holder"] is not None:
        return _describe_holder_need(status, status["holder"])
    if status["state"] == "completed":
        return None
    if status["setback"] is not None:
        return str(status["setback"])
    if status["state"] == "rejected":
        rejected = status["rejected"][-1]
        return (
            f"The quality gate did not let the model of step {rejected['checkpoint']['step']:,} pass: "
            f"{_sentence(rejected['reason'])} It is kept. Change the gate, or train on."
        )
    return _describe_end(status) if status["segments"] else None


def _describe_holder_need(status: Mapping[str, Any], holder: Mapping[str, Any]) -> str | None:
    if holder["stopped"]:
        return str(holder["stopped"])
    if status["state"] == "silent":
        return describe_holder(dict(holder))
    if status["state"] == "lost" and _silence(status) > UNATTENDED_SECONDS:
        who = f"Process {holder['pid']} on {holder['host']}, which held the run, was killed"
        return f"{who}, and nobody has gone on for {duration(_silence(status))}. {_go_on(status)}"
    return None


def _describe_end(status: Mapping[str, Any]) -> str | None:
    """Of a run that nobody holds, by how its last segment ended."""
    last = status["segments"][-1]
    cause = _sentence(last["cause"])
    if last["is_final"]:
        return f"Its last segment could not run, and would fail again: {cause}"
    if last["outcome"] == "diverged":
        return f"Training diverged, and no rollback is left or allowed: {cause}"
    silence = _silence(status)
    if silence <= UNATTENDED_SECONDS:
        return None
    if last["outcome"] in ("failed", "lost"):
        return f"Its last segment ended with an error, {duration(silence)} ago: {cause} {_go_on(status)}"
    if status["state"] == "trained":
        return f"It was trained to its end {duration(silence)} ago and is not tested. `holdfast run` does that."
    return None


def _go_on(status: Mapping[str, Any]) -> str:
    return GO_ON.format(step=status["step"])


def _sentence(text: str) -> str:
    return f"{text.rstrip('. ')}."


def _silence(status: Mapping[str, Any]) -> float:
    return max(0.0, time.time() - float(status["last_sign_of_life_at"]))
