"""Processes of a run are killed, one kind at a time."""

import psutil

from tests.helpers.operators import processes_of
from tests.operating.by_people import COMPLETED, PREEMPTED
from tests.operating.rows import Operated, Row, Trial, find_agent, find_ranks
from tests.operating.runs import SAVE_EVERY

DEAD = ("[warning] run-dead", "[over] run-dead")


def killed_flow_run(operated: Operated) -> Row:
    run = operated.training("killed-flow-run")
    trial = Trial(operated, run, "kill -9 of the flow run's process", "ranks save; the next goes on")
    trial.strike(lambda: find_engine(trial.flow_runs[-1]).kill())
    trial.require_states({"Crashed"}, {"Crashed"})
    return trial.end([PREEMPTED, COMPLETED], may=DEAD)


def killed_rank_at_start(operated: Operated) -> Row:
    run = operated.new_run("killed-at-start", **{"train.ranks": 2})
    trial = Trial(operated, run, "kill -9 of one rank, at its start", "goes on, nothing lost")
    run.begin()
    run.wait(lambda: len(find_ranks(run.name)) == 2, "its ranks are there")
    trial.strike(lambda: find_ranks(run.name)[0].kill())
    run.wait(run.is_complete, "it is complete")
    tried_again = [{"failed", "lost"}] * (len(run.state.segments) - 1)
    return trial.end([*tried_again, COMPLETED], may=("holdfast.segment-lost",))


def killed_rank(operated: Operated) -> Row:
    run = operated.training("killed-rank", **{"train.ranks": 2})
    trial = Trial(operated, run, "kill -9 of one rank, in training", "the other goes on; one segment, nothing lost")
    trial.strike(lambda: find_ranks(run.name)[0].kill())
    return trial.end([COMPLETED])


def killed_agent(operated: Operated) -> Row:
    run = operated.training("killed-agent")
    trial = Trial(operated, run, "kill -9 of the ranks' agent", "ranks save; goes on")
    trial.strike(lambda: find_agent(run.name).kill())
    return trial.end([{"preempted", "failed", "lost"}, COMPLETED], may=("holdfast.segment-lost",), most_lost=SAVE_EVERY)


def find_engine(flow_run: str) -> psutil.Process:
    """The process of a flow run: the first of all that have its name in their environment."""
    return psutil.Process(processes_of(flow_run)[0])
