"""A deployed flow run begins an agent early only where ranks are likely to follow; most ticks have none to start."""

from pathlib import Path
from typing import Any

import pytest

from flows import deployed
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.cluster.agents import kept_agent
from tasks.configuration.run import DataConfig, RunConfig
from tests.helpers.finished_runs import segments_of, state_of
from tests.helpers.runs import lease_run

STEPS = 100


def state_that(ended: str, last_step: int, **update: Any) -> RunState:
    return state_of("run", STEPS, segments_of([(ended, "", last_step, 0)])).model_copy(update=update)


STATES = {
    "new": None,
    "stopped": state_that("budget", 50),
    "trained": state_that("completed", STEPS),
    "complete": state_that("completed", STEPS, metrics={"loss": 0.3}, metrics_step=STEPS),
}


@pytest.mark.parametrize(
    ("state", "is_held", "is_early"),
    [
        ("new", False, True),
        ("stopped", False, True),
        ("trained", False, True),  # it is to be evaluated
        ("complete", False, False),
        ("stopped", True, False),
    ],
)
def test_an_agent_is_begun_early_for_a_run_that_is_not_complete_and_that_nobody_holds(
    state: str, is_held: bool, is_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(run="run", store=str(tmp_path), data=DataConfig(text="t", label="l", kind="binary"))
    known = STATES[state]
    if known is not None:
        Manifest(LocalStore(tmp_path), "run").create(known)
    if is_held:
        lease_run(Manifest(LocalStore(tmp_path), "run"))
    assert ("complete" in state) == (known is not None and known.is_complete)
    pids: list[int | None] = []

    def train(config: RunConfig, _max_segments: int | None) -> RunState:
        kept = kept_agent()
        assert kept is not None
        pids.append(kept.pid)
        # Whether early or not, the first order gets one.
        agent = kept.take(config.train, config.model.kind)
        assert agent.is_idle and (agent.pid == pids[0] or pids[0] is None)
        return known or state_that("budget", 0)

    monkeypatch.setattr(deployed, "train_with_retries", train)
    assert deployed.train_deployed(config, max_segments=1).is_completed()
    (pid,) = pids
    assert (pid is not None) == is_early


def test_where_the_run_cannot_be_read_an_agent_is_begun_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    config = RunConfig(run="run", store=str(tmp_path / "file"), data=DataConfig(text="t", label="l", kind="binary"))
    pids: list[int | None] = []

    def train(_config: RunConfig, _max_segments: int | None) -> RunState:
        pids.append(kept_agent().pid)  # type: ignore[union-attr]
        return state_that("budget", 50)

    monkeypatch.setattr(deployed, "train_with_retries", train)
    deployed.train_deployed(config, max_segments=1)
    assert pids != [None]
