"""A rank is killed, and the others train on from the same step, in the same segment: one model, nothing read again.

Real ranks, begun and watched by an agent. What is compared is every byte of each checkpoint, and every row of the
ledger, with those of one rank that was never interrupted.
"""

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import FoundCheckpoint
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.rank_ends import describe_rank_ends
from tasks.recovery.settle import describe_cause
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.fault_plans import FaultPlan, Moment, StepFault
from tests.helpers.survivors import (
    GRACE_SECONDS,
    PlannedAgent,
    dying_often,
    newest_complete,
    planned_agent,
    train_as_far,
    train_undisturbed,
)
from tests.helpers.training import launch, read_log
from training.agents.locks import find_holders
from training.spec import SegmentSpec
from training.views.folder import ViewFolder

NUM_RANKS = 3
FEW_STEPS: dict[str, Any] = {"steps": 9, "every_steps": 4, "validate_every_steps": 6}
# Of two saves, the first of the best model, which is written beside training.
BEST: dict[str, Any] = FEW_STEPS | {"every_steps": 1000, "keep_best": 1, "background": True}
BEST_STEP = 6
MANY_STEPS: dict[str, Any] = {"steps": 100_000, "every_steps": 10, "validate_every_steps": 25}
# No validation, in which the save under way may end.
ALWAYS_SAVING: dict[str, Any] = MANY_STEPS | {"every_steps": 1, "validate_every_steps": 100_000, "background": True}
NUM_KILLS = 5
DEADLY_ROW = 11
JOIN_SECONDS = 120


@dataclass(frozen=True)
class Death:
    """Who is killed when; which ranks the record names for it, and from which step the others may train on.

    What a rank has sent may reach the others or not: they have ended the step, or take it again.
    """

    name: str
    plan: FaultPlan
    lost: tuple[int, ...]
    steps: tuple[int, ...]
    is_slow: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    num_ranks: int = NUM_RANKS


def held(rank: int, file: str) -> FaultPlan:
    """The rank's share of the best model's checkpoint is not there for two seconds: its first try to write this fails.

    Steps take some milliseconds: the weights have changed by then.
    """
    moment = Moment("rank", "write", file, rank=rank, thread="checkpoint-writer", path=f"/{BEST_STEP:012d}-")
    return FaultPlan().failing(moment, "EIO")


def killed(rank: int, step: int, point: str) -> FaultPlan:
    return FaultPlan().having(StepFault("process", rank, step, point=point))  # type: ignore[arg-type]


DEATHS = (
    Death("before a step", FaultPlan().kill_at_step(4, rank=1), (1,), (4,), is_slow=True),
    Death("the first rank, when a part of its sum was sent", killed(0, 5, "sent"), (0,), (5, 6)),
    Death("before it changes the weights", killed(2, 5, "summed"), (2,), (5, 6), is_slow=True),
    Death(
        "the same, while another one is a step behind",
        killed(2, 5, "summed").having(StepFault("lose_peer", 1, 5, point="summed")),
        (2,),
        (5, 6),
    ),
    Death("two at once", FaultPlan().kill_at_step(3, rank=0).kill_at_step(3, rank=2), (0, 2), (3,), is_slow=True),
    Death("in a validation", killed(1, 6, "validate"), (1,), (6,)),
    Death(
        "while it writes a save",
        FaultPlan().kill(Moment("rank", "write", "model", rank=1)),
        (1,),
        (4,),
        is_slow=True,
    ),
    Death(
        "the first rank, before an index is put", FaultPlan().kill(Moment("rank", "link", "index", rank=0)), (0,), (4,)
    ),
    Death(
        "while it writes a save beside training",
        FaultPlan().kill(Moment("rank", "write", "model", rank=1, thread="checkpoint-writer")),
        (1,),
        tuple(range(4, 10)),
        is_slow=True,
        settings=(("background", True),),
    ),
)

DEATHS_BESIDE_THE_BEST = (
    Death(
        "while it writes the best model beside training, which has changed since",
        held(1, "model").kill_at_step(7, rank=1),
        (1,),
        (7,),
    ),
    Death(
        "the same, the first rank, which writes what is no tensor, too",
        held(0, "optimizer").kill_at_step(7, rank=0),
        (0,),
        (7,),
        is_slow=True,
    ),
    Death(
        "two of four that write the best model, one after the other",
        held(1, "model").kill_at_step(7, rank=1).kill_at_step(8, rank=3),
        (1, 3),
        (7, 8),
        is_slow=True,
        num_ranks=4,
    ),
    Death(
        "the first rank, before it puts the index of the best model, which has changed since",
        FaultPlan().kill(Moment("rank", "link", "index", rank=0, path=f"/{BEST_STEP:012d}-")),
        (0,),
        (6, 7, 8, 9),
        is_slow=True,
    ),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("survivors"))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannedAgent]:
    with planned_agent(tmp_path_factory.mktemp("plans") / "plan") as agent:
        yield agent


@pytest.fixture(scope="module")
def expected(runs: Runs) -> dict[int, FoundCheckpoint]:
    """The checkpoints of one rank that meets nothing."""
    return train_undisturbed(runs, **FEW_STEPS)


@pytest.fixture(scope="module")
def expected_best(runs: Runs) -> dict[int, FoundCheckpoint]:
    """The same, of the best model and of the last one."""
    return train_undisturbed(runs, **BEST)


def rows(deaths: tuple[Death, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "death",
        [pytest.param(death, id=death.name, marks=[pytest.mark.slow] if death.is_slow else []) for death in deaths],
    )


@rows(DEATHS)
def test_the_others_train_on_when_a_rank_dies(
    death: Death,
    runs: Runs,
    expected: dict[int, FoundCheckpoint],
    agent: PlannedAgent,
) -> None:
    spec = runs.next_spec(NUM_RANKS, **FEW_STEPS | dict(death.settings))
    require_survived(death, agent.train_to_end(spec, death.plan, runs), spec, agent)
    found = runs.checkpoints_of(spec)
    assert max(found) == 9 and expected.keys() == {4, 8, 9}
    for step in found.keys() & expected.keys():
        require_the_same(found[step], expected[step], runs)


def require_survived(death: Death, outcome: OutcomeRecord, spec: SegmentSpec, agent: PlannedAgent) -> None:
    """One segment to its end, in which just those died that were to."""
    assert agent.fired(), read_log(spec)
    assert (outcome.outcome, outcome.last_step, outcome.world_size) == ("completed", 9, spec.train.ranks), read_log(
        spec
    )
    assert "restore" not in outcome.phases
    died = [(rank, cause) for view in outcome.views for rank, cause in zip(view.lost, view.causes, strict=True)]
    assert sorted(died) == [(rank, "SIGKILL") for rank in death.lost], read_log(spec)
    assert {view.step for view in outcome.views if view.lost} <= set(death.steps)
    account = describe_rank_ends(spec.scratch_folder)
    assert account.cause is None and list(account.views) == outcome.views
    assert account.view_totals == outcome.view_totals is not None


@rows(DEATHS_BESIDE_THE_BEST)
def test_the_best_model_is_written_by_who_holds_the_share_of_a_rank_that_dies(
    death: Death,
    runs: Runs,
    expected_best: dict[int, FoundCheckpoint],
    agent: PlannedAgent,
) -> None:
    spec = runs.next_spec(death.num_ranks, **BEST)
    require_survived(death, agent.train_to_end(spec, death.plan, runs), spec, agent)
    require_both(runs.checkpoints_of(spec), expected_best, runs)


def require_both(found: dict[int, FoundCheckpoint], expected: dict[int, FoundCheckpoint], runs: Runs) -> None:
    """The best model's checkpoint and the last one, byte for byte."""
    assert found.keys() == expected.keys() == {BEST_STEP, 9}
    for step in found:
        require_the_same(found[step], expected[step], runs)


def let_go_on(marks: list[dict[str, Any]], faults: tuple[int, ...]) -> None:
    """Let ranks go on that stand still because of these faults."""
    for mark in marks:
        if mark["fault"] in faults:
            with suppress(ProcessLookupError):
                os.kill(mark["pid"], signal.SIGCONT)


@pytest.mark.slow
def test_a_rank_that_joins_while_the_best_model_is_written_is_the_first_one_and_puts_its_index(
    runs: Runs, expected_best: dict[int, FoundCheckpoint], agent: PlannedAgent
) -> None:
    """Others notice a death when they next send or receive; by then there may be a view with the successor."""
    spec = runs.next_spec(NUM_RANKS, **BEST)
    plan = held(0, "optimizer").hang(1, 7).hang(2, 7).kill_at_step(7, rank=0)
    views = ViewFolder(spec.scratch_folder)
    with agent.launch(spec, plan) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if (newest := views.find_newest(0)) is not None and newest.joined:
                let_go_on(agent.fired(), faults=(1, 2))
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None and outcome.outcome == "completed", read_log(spec)
    assert "restore" not in outcome.phases
    require_both(runs.checkpoints_of(spec), expected_best, runs)


def test_where_both_die_that_hold_a_share_of_the_best_model_the_segment_ends(runs: Runs, agent: PlannedAgent) -> None:
    spec = runs.next_spec(NUM_RANKS, **BEST)
    plan = held(1, "model").hang(2, 7).kill_at_step(7, rank=0).kill_at_step(7, rank=1)
    with agent.launch(spec, plan) as ranks:
        while ranks.is_running(POLL_SECONDS):
            marks = agent.fired()
            if {mark["fault"] for mark in marks} == {0, 1, 2, 3}:  # it meets both deaths at once
                let_go_on(marks, faults=(1,))
    assert "The ranks died that held a share of the best model's checkpoint" in read_log(spec)
    assert not runs.checkpoints_of(spec)
    assert describe_rank_ends(spec.scratch_folder).cause is not None


def deadly(effect: str, times: int | None) -> FaultPlan:
    """Whoever computes the microbatch with this row is ended."""
    return FaultPlan().having(StepFault(effect, row=DEADLY_ROW, times=times, point="computing"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effect", "num_deaths", "cause"),
    [("crash", 2, "SIGSEGV"), pytest.param("process", 3, "SIGKILL", marks=pytest.mark.slow)],
)
def test_a_microbatch_that_ends_who_computes_it_ends_the_segment_and_is_named(
    effect: str, num_deaths: int, cause: str, runs: Runs, agent: PlannedAgent
) -> None:
    spec = runs.next_spec(NUM_RANKS, **FEW_STEPS)
    with agent.launch(spec, deadly(effect, times=None)) as ranks:
        while ranks.is_running(POLL_SECONDS):
            pass
    died = agent.fired()
    assert len(died) == num_deaths, read_log(spec)
    ((step, index),) = {(mark["step"], mark["microbatch"]) for mark in died}
    account = describe_rank_ends(spec.scratch_folder)
    told = describe_cause(find_outcome(runs.store, spec.run, spec.fence), account)
    named = ", then ".join(f"rank {mark['rank']} ({cause})" for mark in died)
    sentence = f"Microbatch {index} of the step after step {step} ended each rank that computed it: {named}. It has the"
    assert sentence in told, read_log(spec)
    rows = re.search(r"the rows ([\d, ]+) of the training split", told)
    assert rows is not None and DEADLY_ROW in map(int, rows[1].split(", "))


@pytest.mark.slow
def test_two_kills_at_one_microbatch_that_somebody_may_have_sent_end_no_segment(
    runs: Runs, expected: dict[int, FoundCheckpoint], agent: PlannedAgent
) -> None:
    """What is counted is in `unit/training/agents/test_deadly.py`."""
    spec = runs.next_spec(NUM_RANKS, **FEW_STEPS)
    outcome = agent.train_to_end(spec, deadly("process", times=2), runs)
    assert len(agent.fired()) == 2 and outcome.outcome == "completed", read_log(spec)
    require_the_same(runs.checkpoints_of(spec)[9], expected[9], runs)


def test_a_rank_that_is_killed_again_and_again_is_replaced_and_it_is_the_same_run(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"kills of seed {seed}")
    chance, runs = random.Random(seed), Runs(tmp_path)
    spec = runs.next_spec(NUM_RANKS, **MANY_STEPS)
    views, num_kills, num_complete = ViewFolder(spec.scratch_folder), 0, -1
    with dying_often(), launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            number = newest_complete(views, NUM_RANKS)
            if number is None or number == num_complete:
                continue
            num_complete = number  # a view in which none is missing: after each death there is one more
            if num_kills == NUM_KILLS:
                ranks.stop()
                continue
            ranks.is_running(chance.uniform(0, 0.5))  # the random moment
            victims = [holder for holder in find_holders(spec.scratch_folder) if holder.rank is not None]
            os.kill(chance.choice(victims).pid, signal.SIGKILL)
            num_kills += 1
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None and outcome.outcome == "preempted", read_log(spec)
    assert sum(len(view.lost) for view in outcome.views) == NUM_KILLS
    assert sum(len(view.joined) for view in outcome.views) == NUM_KILLS
    assert "restore" not in outcome.phases
    found = runs.checkpoints_of(spec)
    assert max(found) == outcome.last_step
    expected = train_as_far(found[max(found)], runs, **MANY_STEPS)
    assert expected.keys() >= found.keys() - {outcome.last_step}
    for step in found:
        require_the_same(found[step], expected[step], runs)


def test_a_rank_joins_where_each_save_is_followed_by_the_next_one_at_once(runs: Runs, agent: PlannedAgent) -> None:
    spec = runs.next_spec(2, **ALWAYS_SAVING)
    plan = FaultPlan().late(Moment("rank", "write", thread="checkpoint-writer", path="model")).kill_at_step(4, rank=1)
    views, ends = ViewFolder(spec.scratch_folder), time.monotonic() + JOIN_SECONDS
    with agent.launch(spec, plan) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if newest_complete(views, 2) or time.monotonic() >= ends:
                ranks.stop()
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None and outcome.outcome == "preempted", read_log(spec)
    assert [view.joined for view in outcome.views if view.joined] == [[1]], read_log(spec)
    last = runs.checkpoints_of(spec)[outcome.last_step]
    expected = train_as_far(last, runs, **ALWAYS_SAVING)[outcome.last_step]
    for name in ("model.safetensors", "optimizer.safetensors"):  # not the history, which ranks with a plan cut shorter
        assert last.index.files[name] == expected.index.files[name], read_log(spec)
