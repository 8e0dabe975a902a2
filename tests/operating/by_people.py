"""What people do with a run, and what its schedule does."""

import time
from typing import Any

from tests.operating.place import COMPLETE
from tests.operating.rows import Operated, Row, Trial
from tests.operating.runs import STEPS, Run, wait_for

COMPLETED = {"completed"}
PREEMPTED = {"preempted"}
PAUSED_SECONDS = 90.0
# A tick of the schedule that falls between training and evaluation makes the evaluation.
DONE = {"Completed", "Skipped"}


def undisturbed(operated: Operated) -> Row:
    """Whose weights all others must come to; another flow run of it begins meanwhile, as by the schedule."""
    run = operated.training("undisturbed")
    trial = Trial(operated, run, "ticks of the schedule on a run in training", "Skipped, and nobody is told")
    ticks: list[str] = []
    trial.strike(lambda: ticks.append(run.submit()))
    run.wait(lambda: run.are_final(ticks), "the tick ends")
    trial.row.require(run.states(ticks) == ["Skipped"], f"the tick ended as {run.states(ticks)}")
    trial.row.seen.append(f"the tick: {run.states(ticks)[0]}")
    run.wait(run.is_complete, "it is complete")
    promoted = run.state.promoted
    assert promoted is not None
    operated.weights = promoted.weights_sha256
    trial.require_states(DONE, DONE, within=600.0)
    row = trial.end([COMPLETED])
    wait_for(lambda: not _is_scheduled(run), "the reconciler pauses the schedule of a complete run")
    row.seen.append("its schedule is paused")
    return row


def cancelled(operated: Operated) -> Row:
    run = operated.training("cancelled")
    trial = Trial(operated, run, "*Cancel* in the UI", "saved, Cancelled; the next tick goes on")
    trial.strike(lambda: operated.place.operator.cancel(trial.flow_runs[-1]))
    trial.require_states({"Cancelled"}, {"Cancelled"})
    run.submit()  # the next tick
    return trial.end([PREEMPTED, COMPLETED])


def suspended(operated: Operated) -> Row:
    run = operated.training("suspended")
    trial = Trial(operated, run, "*Pause*, a minute and a half, *Resume*", "saved, Suspended, and stays so; goes on")
    trial.strike(lambda: operated.place.operator.suspend(trial.flow_runs[-1]))
    run.wait(lambda: run.state.lease is None, "it has saved and left")
    time.sleep(PAUSED_SECONDS)  # of nothing that is not done there is a sign
    states = run.states(trial.flow_runs)
    trial.row.require(set(states) == {"Suspended"}, f"after {PAUSED_SECONDS:.0f} s it is shown as {states}")
    trial.row.require(run.state.lease is None, "somebody trains it though it is paused")
    trial.row.seen.append(f"after {PAUSED_SECONDS:.0f} s {' in '.join(states)}")
    operated.place.operator.resume(trial.flow_runs[-1])
    trial.require_states(DONE, DONE, within=600.0)
    return trial.end([PREEMPTED, COMPLETED])


def stopped(operated: Operated) -> Row:
    run = operated.training("stopped")
    trial = Trial(operated, run, "`holdfast stop`", "saved, Cancelled; the next tick goes on")
    trial.strike(lambda: operated.place.type("stop", run.address))
    trial.require_states({"Cancelled"}, {"Cancelled"})
    run.submit()  # the next tick
    return trial.end([PREEMPTED, COMPLETED])


def deleted(operated: Operated) -> Row:
    run = operated.training("deleted")
    trial = Trial(operated, run, "the flow run is deleted", "trains on, and nobody is told")
    trial.strike(lambda: operated.place.operator.request("DELETE", f"/flow_runs/{trial.flow_runs[-1]}"))
    return trial.end([COMPLETED])


def changed_by_form(operated: Operated) -> Row:
    """By *resume*: fewer steps than made are refused, a dry run does nothing, more steps on two ranks are made."""
    run = operated.training("resumed")
    trial = Trial(operated, run, "the form *resume*: fewer steps, dry run, more steps", "refused; nothing; does it")
    trial.strike(lambda: None)
    run.wait(run.is_complete, "it is complete")
    wait_for(lambda: f"{COMPLETE}: {run.name}" in operated.place.told, "people are told that it is complete")
    generation = run.state
    forms: tuple[tuple[dict[str, Any], str], ...] = (
        ({"steps": STEPS // 2}, "Failed"),
        ({"steps": STEPS + 100, "dry_run": True}, "Dry run"),
    )
    for form, expected in forms:
        ended = _fill_in(operated, run, **form)
        trial.row.seen.append(f"{form}: {ended}")
        trial.row.require(ended == expected, f"{form} ended as {ended}, expected {expected}")
        trial.row.require(run.state == generation, f"{form} changed the run")
    ended = _fill_in(operated, run, steps=STEPS + 100, ranks=2)
    promoted = run.state.promoted
    trial.row.require(promoted is not None and promoted.step == STEPS + 100, f"{STEPS + 100} steps ended as {ended}")
    trial.row.seen.append(f"100 more steps on 2 ranks: {ended}")
    return trial.end([COMPLETED, COMPLETED], num_ends=2)


def _fill_in(operated: Operated, run: Run, **form: Any) -> str:
    """The final state of the flow run that the form begins."""
    operator = operated.place.operator
    begun = operator.submit("resume/resume", store=run.address.rpartition("/runs/")[0], run=run.name, **form)
    wait_for(lambda: run.are_final([begun]), f"the form {form}")
    return run.states([begun])[0]


def _is_scheduled(run: Run) -> bool:
    found = run.place.operator.deployment(f"scheduled/{run.name}")
    return any(schedule["active"] for schedule in found["schedules"])


def nothing_else(operated: Operated) -> Row:
    """What people were told in all, less what the rows have accounted for."""
    row = Row("everything together", "nobody is told what no row accounts for")
    rest = [text for text in operated.place.told if operated.claimed[text] == 0]
    row.require(not rest, f"told, and expected by no row: {rest}")
    row.seen.append(f"{len(operated.place.told)} messages")
    return row
