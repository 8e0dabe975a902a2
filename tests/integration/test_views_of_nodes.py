"""A rank is killed on one of several nodes, and the others train on from the same step: the views are in the store.

Real nodes, agents and ranks, without a scheduler. What is compared is every byte of each checkpoint, and every row of
the ledger, with those of one rank that was never interrupted.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import FoundCheckpoint
from storage.runs.run_records import ViewRecord
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster.orders import read_node_ends
from tasks.cluster.relayed import Relayed, describe_relayed_ends
from tasks.configuration.notices import NoticesConfig
from tests.helpers import hosts as hosts_module
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.fault_plans import FaultPlan, StepFault
from tests.helpers.hosts import Hosts, running_hosts
from tests.helpers.nodes import Nodes, running_nodes, spec_of_nodes
from tests.helpers.survivors import meet, newest_complete, require_as_of_one_rank, train_undisturbed
from training.spec import SegmentSpec

FEW_STEPS: dict[str, Any] = {"steps": 9, "every_steps": 4, "validate_every_steps": 6}
MANY_STEPS: dict[str, Any] = {"steps": 100_000, "every_steps": 10, "validate_every_steps": 25}
# A busy machine is not silent.
WITHOUT_A_NODE: dict[str, Any] = {"min_nodes": 1, "silent_seconds": 120}
WITHOUT_A_HOST: dict[str, Any] = {"min_nodes": 2, "silent_seconds": 20}


@dataclass(frozen=True)
class Death:
    """Which ranks are killed when, of how many nodes with how many ranks each."""

    name: str
    plan: FaultPlan
    lost: tuple[int, ...]
    nodes: tuple[str, ...] = ("n1", "n2")
    ranks: int = 4
    is_slow: bool = False


def killed(rank: int, step: int, point: str) -> FaultPlan:
    return FaultPlan().having(StepFault("process", rank, step, point=point))  # type: ignore[arg-type]


DEATHS = (
    Death("the first rank, beside another one of its node", killed(0, 5, "sent"), (0,), is_slow=True),
    Death(
        "the first rank, which is alone on its node", killed(0, 5, "summed"), (0,), nodes=("n1", "n2", "n3"), ranks=3
    ),
    Death(
        "one on each of two nodes at once",
        FaultPlan().kill_at_step(3, rank=1).kill_at_step(3, rank=2),
        (1, 2),
        is_slow=True,
    ),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def expected(runs: Runs) -> dict[int, FoundCheckpoint]:
    """The checkpoints of one rank that meets nothing."""
    return train_undisturbed(runs, **FEW_STEPS)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if reason := hosts_module.find_reason_to_skip():
        pytest.skip(reason)
    with running_hosts(("h1", "h2", "h3")) as made:
        yield made


def outcome_of(nodes: Nodes, runs: Runs) -> OutcomeRecord:
    outcome = find_outcome(runs.store, nodes.spec.run, nodes.spec.fence)
    assert outcome is not None, nodes.read_output()
    return outcome


def changes_of(views: Sequence[ViewRecord]) -> tuple[list[int], list[int]]:
    """Who died and who joined.

    A node none of whose ranks was in a view tells of it together with the next one, and so does the store of a view
    whose first rank's node was lost before it had told that training went on.
    """
    return [slot for view in views for slot in view.lost], [slot for view in views for slot in view.joined]


def require_the_run(spec: SegmentSpec, runs: Runs, expected: dict[int, FoundCheckpoint]) -> None:
    found = runs.checkpoints_of(spec)
    assert max(found) == 9 and expected.keys() == {4, 8, 9}
    for step in found.keys() & expected.keys():
        require_the_same(found[step], expected[step], runs)


@pytest.mark.parametrize(
    "death",
    [pytest.param(death, id=death.name, marks=[pytest.mark.slow] if death.is_slow else []) for death in DEATHS],
)
def test_the_others_train_on_when_a_rank_of_a_node_dies(
    death: Death,
    runs: Runs,
    expected: dict[int, FoundCheckpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = spec_of_nodes(runs.next_spec(death.ranks, **FEW_STEPS), tmp_path / "scratch", len(death.nodes))
    meet(death.plan, tmp_path / "plan", spec, monkeypatch)
    with running_nodes(spec, runs.store, death.nodes, tmp_path / "output") as nodes:
        assert set(nodes.wait().values()) == {0}, nodes.read_output()
        outcome = outcome_of(nodes, runs)
    said = nodes.read_output()
    assert death.plan.fired(tmp_path / "plan"), said
    assert (outcome.outcome, outcome.last_step, outcome.world_size) == ("completed", 9, death.ranks), said
    assert "restore" not in outcome.phases
    died = [(rank, cause) for view in outcome.views for rank, cause in zip(view.lost, view.causes, strict=True)]
    assert sorted(died) == [(rank, "SIGKILL") for rank in death.lost], said
    require_the_run(spec, runs, expected)
    account = describe_relayed_ends(runs.store, spec.run, spec.fence)
    assert account.cause is None and changes_of(account.views) == changes_of(outcome.views), said
    reports = Relayed(runs.store, spec.run, spec.fence).read_reports(is_last=True)
    assert reports[-1].step == 9 and [r.checkpoint.step for r in reports if r.checkpoint] == [4, 8, 9]


@pytest.mark.slow
def test_a_rank_is_replaced_then_a_node_is_lost_and_the_other_one_trains_on(runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(4, **MANY_STEPS), tmp_path / "scratch", 2)
    with running_nodes(made, runs.store, ("n1", "n2"), tmp_path / "output", **WITHOUT_A_NODE) as nodes:
        left = nodes.views("n1")
        nodes.wait_until(lambda: newest_complete(left, 4) == 0)
        os.kill(nodes.ranks("n2")[0].pid, signal.SIGKILL)
        nodes.wait_until(lambda: newest_complete(left, 4) not in (None, 0))
        began = time.monotonic()
        nodes.kill("n2")
        nodes.wait_until(lambda: newest_complete(left, 2) is not None)
        print(f"a node was killed: the other one trains on after {time.monotonic() - began:.2f} s")
        nodes.stop("n1")
        assert nodes.wait()["n1"] == 0, nodes.read_output()
        outcome = outcome_of(nodes, runs)
    assert outcome.outcome == "preempted" and "restore" not in outcome.phases, nodes.read_output()
    # On a busy machine the successor may be there before the others train on: that is one change.
    *before, without = outcome.views
    lost = [slot for view in before for slot in view.lost]
    assert len(lost) == 1 and [slot for view in before for slot in view.joined] == lost
    assert [cause for view in before for cause in view.causes] == ["SIGKILL"]
    assert (len(without.lost), without.num_ranks, set(without.causes)) == (2, 2, {"its node is lost"})
    ends = read_node_ends(runs.store, made.run, made.fence)
    assert [(end.node, end.how) for end in ends] == [("n1", "left"), ("n2", "lost")]
    account = describe_relayed_ends(runs.store, made.run, made.fence)
    assert changes_of(account.views) == changes_of(outcome.views)
    require_as_of_one_rank(made, outcome.last_step, runs, **MANY_STEPS)


@pytest.mark.slow
def test_a_host_that_is_cut_off_and_reaches_the_store_leaves_while_the_others_train_on(
    hosts: Hosts, runs: Runs, tmp_path: Path
) -> None:
    made = spec_of_nodes(runs.next_spec(3, **MANY_STEPS), tmp_path / "scratch", 3)
    with running_nodes(made, runs.store, hosts.names, tmp_path / "output", hosts, **WITHOUT_A_HOST) as nodes:
        left = nodes.views("h1")
        nodes.wait_until(lambda: newest_complete(left, 3) == 0)
        began = time.monotonic()
        hosts.cut("h3")
        nodes.wait_until(lambda: left.find_going(1) is not None)
        print(f"a host was cut off: the others train on after {time.monotonic() - began:.2f} s")
        nodes.wait_until(lambda: nodes.exit_code("h3") is not None)
        assert nodes.exit_code("h3") == 0 and nodes.ranks("h3") == [], nodes.read_output()
        assert nodes.exit_code("h1") is None and nodes.exit_code("h2") is None, nodes.read_output()
        assert find_outcome(runs.store, made.run, made.fence) is None
        nodes.stop("h1")
        assert set(nodes.wait().values()) == {0}, nodes.read_output()
        outcome = outcome_of(nodes, runs)
    (view,) = outcome.views
    assert (outcome.outcome, view.causes, view.num_ranks) == ("preempted", ["its node is lost"], 2)
    assert "restore" not in outcome.phases
    require_as_of_one_rank(made, outcome.last_step, runs, **MANY_STEPS)


@pytest.mark.slow
def test_a_node_that_is_asked_to_stop_leaves_alone_while_enough_others_stay(runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(3, **MANY_STEPS), tmp_path / "scratch", 3)
    names = ("n1", "n2", "n3")
    with running_nodes(made, runs.store, names, tmp_path / "output", min_nodes=2, silent_seconds=120) as nodes:
        nodes.wait_until(lambda: newest_complete(nodes.views("n1"), 3) == 0)
        first, second, third = sorted(names, key=lambda name: nodes.ranks(name)[0].rank or 0)
        left = nodes.views(second)
        nodes.stop(first)
        nodes.wait_until(lambda: nodes.exit_code(first) is not None)
        assert nodes.exit_code(first) == 0, nodes.read_output()
        nodes.wait_until(lambda: newest_complete(left, 2) is not None)
        assert find_outcome(runs.store, made.run, made.fence) is None, nodes.read_output()
        saved = max(runs.checkpoints_of(made), default=0)
        nodes.wait_until(lambda: max(runs.checkpoints_of(made), default=0) >= saved + 20)
        assert nodes.exit_code(second) is None and nodes.exit_code(third) is None, nodes.read_output()
        nodes.stop(third)  # one alone would be fewer than min_nodes
        assert set(nodes.wait().values()) == {0}, nodes.read_output()
        outcome = outcome_of(nodes, runs)
    (view,) = outcome.views
    assert (outcome.outcome, view.lost, view.num_ranks) == ("preempted", [0], 2), nodes.read_output()
    assert view.causes == ["its node was asked to leave"] and "Traceback" not in nodes.read_output()
    assert "restore" not in outcome.phases
    require_as_of_one_rank(made, outcome.last_step, runs, **MANY_STEPS)


def test_all_nodes_get_a_notice_one_after_the_other_and_nothing_is_lost(runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(3, **MANY_STEPS), tmp_path / "scratch", 3)
    notice, names = tmp_path / "notice", ("n1", "n2", "n3")
    announced = NoticesConfig(file=str(notice))
    with running_nodes(made, runs.store, names, tmp_path / "output", notices=announced, **WITHOUT_A_NODE) as nodes:
        nodes.wait_until(lambda: newest_complete(nodes.views("n1"), 3) == 0)
        notice.write_text("this machine is taken away\n")  # each looks for it every two seconds, at moments of its own
        assert set(nodes.wait().values()) == {0}, nodes.read_output()
        outcome = outcome_of(nodes, runs)
    said = nodes.read_output()
    assert outcome.outcome == "preempted" and "Traceback" not in said, said
    require_as_of_one_rank(made, outcome.last_step, runs, **MANY_STEPS)
