"""A node comes to a segment under way: one that was lost and was started again, and one more.

Real nodes, agents and ranks, without a scheduler. What is compared is every byte of each checkpoint, and every row of
the ledger, with those of one rank that was never interrupted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster.orders import read_node_ends
from tasks.cluster.relayed import describe_relayed_ends
from tests.helpers import hosts as hosts_module
from tests.helpers.elastic_runs import Runs
from tests.helpers.hosts import Hosts, running_hosts
from tests.helpers.nodes import Nodes, running_nodes, spec_of_nodes
from tests.helpers.survivors import newest_complete, require_as_of_one_rank

MANY_STEPS: dict[str, Any] = {"steps": 100_000, "every_steps": 10, "validate_every_steps": 25}
# A busy machine is not silent.
WITHOUT_A_NODE: dict[str, Any] = {"min_nodes": 1, "silent_seconds": 120}
WITHOUT_A_HOST: dict[str, Any] = {"min_nodes": 2, "silent_seconds": 20}
LOST = "its node is lost"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if reason := hosts_module.find_reason_to_skip():
        pytest.skip(reason)
    with running_hosts(("h1", "h2", "h3")) as made:
        yield made


def has_begun(nodes: Nodes, name: str) -> bool:
    """Whether all train that are there at the beginning."""
    return newest_complete(nodes.views(name), 0) == 0


def trains_with(nodes: Nodes, name: str, num_ranks: int) -> bool:
    """Whether so many ranks train together, others than at the beginning, as this node knows."""
    return (newest_complete(nodes.views(name), num_ranks) or 0) > 0


def stop_and_require_the_run(nodes: Nodes, name: str, runs: Runs, others: tuple[str, ...] = ()) -> OutcomeRecord:
    """All nodes are asked to leave, and do; what they saved is what one rank would have saved."""
    for one in (name, *others):
        nodes.stop(one)
    codes = nodes.wait()
    assert {codes[node] for node in (name, *others)} == {0}, nodes.read_output()
    outcome = find_outcome(runs.store, nodes.spec.run, nodes.spec.fence)
    assert outcome is not None and outcome.outcome == "preempted", nodes.read_output()
    assert "restore" not in outcome.phases, nodes.read_output()
    require_as_of_one_rank(nodes.spec, outcome.last_step, runs, **MANY_STEPS)
    return outcome


def nodes_of(runs: Runs, nodes: Nodes) -> tuple[list[str], list[str]]:
    """The names of nodes that were lost, and of those that joined."""
    views = describe_relayed_ends(runs.store, nodes.spec.run, nodes.spec.fence).views
    return [name for view in views for name in view.lost_nodes], [name for view in views for name in view.joined_nodes]


@pytest.mark.parametrize("name", ["n2", pytest.param("n1", marks=pytest.mark.slow)])
def test_a_node_that_was_killed_is_started_again_and_joins_the_other_one(name: str, runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(2, **MANY_STEPS), tmp_path / "scratch", 2)
    other = {"n1": "n2", "n2": "n1"}[name]
    with running_nodes(made, runs.store, ("n1", "n2"), tmp_path / "output", **WITHOUT_A_NODE) as nodes:
        nodes.wait_until(lambda: has_begun(nodes, other))
        nodes.kill(name)
        nodes.wait_until(lambda: trains_with(nodes, other, 1))
        nodes.start(name)
        nodes.wait_until(lambda: trains_with(nodes, other, 2))
        assert nodes.exit_code(other) is None and nodes.exit_code(name) is None, nodes.read_output()
        ends = read_node_ends(runs.store, made.run, made.fence)
        assert [(end.node, end.how) for end in ends] == [(name, "joined")], nodes.read_output()
        outcome = stop_and_require_the_run(nodes, other, runs, (name,))
    assert [cause for view in outcome.views for cause in view.causes] == [LOST], nodes.read_output()
    assert nodes_of(runs, nodes) == ([name], [name])


@pytest.mark.slow
def test_a_node_that_is_started_again_before_it_is_missed_takes_the_place_of_its_earlier_process(
    runs: Runs, tmp_path: Path
) -> None:
    made = spec_of_nodes(runs.next_spec(2, **MANY_STEPS), tmp_path / "scratch", 2)
    with running_nodes(made, runs.store, ("n1", "n2"), tmp_path / "output", **WITHOUT_A_NODE) as nodes:
        nodes.wait_until(lambda: has_begun(nodes, "n1"))
        earlier = nodes.let_go("n2")
        nodes.start("n2")
        nodes.wait_until(lambda: earlier.poll() is not None)
        assert earlier.returncode == 0, nodes.read_output()
        nodes.wait_until(lambda: trains_with(nodes, "n1", 2))
        stop_and_require_the_run(nodes, "n1", runs, ("n2",))
    assert nodes_of(runs, nodes) == (["n2"], ["n2"])


@pytest.mark.slow
def test_a_fourth_node_joins_three(runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(3, **MANY_STEPS), tmp_path / "scratch", 3)
    with running_nodes(made, runs.store, ("n1", "n2", "n3"), tmp_path / "output", **WITHOUT_A_NODE) as nodes:
        nodes.wait_until(lambda: has_begun(nodes, "n1"))
        nodes.start("n4")
        nodes.wait_until(lambda: trains_with(nodes, "n1", 4))
        nodes.kill("n2")
        nodes.wait_until(lambda: trains_with(nodes, "n1", 3))
        outcome = stop_and_require_the_run(nodes, "n1", runs, ("n3", "n4"))
    assert outcome.world_size == 3
    assert [slot for view in outcome.views for slot in view.joined] == [3], nodes.read_output()
    assert nodes_of(runs, nodes) == (["n2"], ["n4"])


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_joins_leaves_the_others_training(runs: Runs, tmp_path: Path) -> None:
    made = spec_of_nodes(runs.next_spec(2, **MANY_STEPS), tmp_path / "scratch", 2)
    with running_nodes(made, runs.store, ("n1", "n2"), tmp_path / "output", **WITHOUT_A_NODE) as nodes:
        nodes.wait_until(lambda: has_begun(nodes, "n1"))
        nodes.kill("n2")
        nodes.wait_until(lambda: trains_with(nodes, "n1", 1))
        nodes.start("n2")
        claims = f"runs/{made.run}/segments/{made.fence:08d}/claims/"
        nodes.wait_until(lambda: list(runs.store.list_keys(claims)) != [])
        nodes.kill("n2")
        nodes.start("n2")  # once more, and to the end
        nodes.wait_until(lambda: trains_with(nodes, "n1", 2))
        assert len(list(runs.store.list_keys(claims))) == 2
        stop_and_require_the_run(nodes, "n1", runs, ("n2",))
    assert nodes_of(runs, nodes) == (["n2"], ["n2"])


@pytest.mark.slow
def test_a_host_that_was_cut_off_and_left_comes_back_when_its_link_is_mended(
    hosts: Hosts, runs: Runs, tmp_path: Path
) -> None:
    made = spec_of_nodes(runs.next_spec(3, **MANY_STEPS), tmp_path / "scratch", 3)
    with running_nodes(made, runs.store, hosts.names, tmp_path / "output", hosts, **WITHOUT_A_HOST) as nodes:
        nodes.wait_until(lambda: has_begun(nodes, "h1"))
        hosts.cut("h3")
        nodes.wait_until(lambda: trains_with(nodes, "h1", 2))
        nodes.wait_until(lambda: nodes.exit_code("h3") is not None)
        assert nodes.exit_code("h3") == 0, nodes.read_output()
        hosts.mend("h3")
        nodes.start("h3")
        nodes.wait_until(lambda: trains_with(nodes, "h1", 3))
        stop_and_require_the_run(nodes, "h1", runs, ("h2", "h3"))
    assert nodes_of(runs, nodes) == (["h3"], ["h3"])
