"""Prefect's server goes away while a run trains, and comes back only when the run has nothing left to do.

How long it is away is no part of what is tested: nothing waits for it before the end of the flow, and that wait has a
limit of its own, fifteen minutes.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tests.helpers.commands import Runner, kill_everything, wait_until
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import ANSWER_SECONDS, find_free_port, running_prefect_server
from tests.helpers.tiny_runs import write_tiny_configuration

pytestmark = [pytest.mark.server, pytest.mark.slow]

STEPS = 120
EVERY_STEPS = 40
NAMES = (
    "prepare",
    *(f"prepare: {name}" for name in ("contract", "split and statistics", "tokenise", "assign", "shard")),
    "recover",
    f"segment 2: steps 0 to {STEPS}",  # the number that commands and messages have
    *(f"promote step {step}" for step in range(EVERY_STEPS, STEPS + 1, EVERY_STEPS)),
    "evaluate",
    "audit",
    "baseline",
    "report",
)
COMPLETED = {(name, "COMPLETED") for name in NAMES}


def test_a_server_that_goes_away_stops_nothing_and_is_told_everything_when_it_is_back(tmp_path: Path) -> None:
    port, home = find_free_port(), tmp_path / "prefect"
    home.mkdir()
    store = LocalStore(tmp_path / "store")
    with running_prefect_server(home, port) as environment:
        runner = make_runner(tmp_path, store, environment)
        process = runner.start()
        try:
            assert wait_until(lambda: promoted_step(store) >= EVERY_STEPS, process), runner.log.read_text()
        except BaseException:
            kill_everything(process)
            raise
    try:
        # The server is gone. All that is left of the run is done without it.
        assert wait_until(lambda: is_reported_complete(store), process), runner.log.read_text()
        assert [segment.outcome for segment in state_of(store).segments] == ["completed"]
        assert process.poll() is None  # it waits, to tell the server
        with running_prefect_server(home, port):
            assert process.wait(300) == 0, runner.log.read_text()
            # The server puts what it hears of steps into its database some time later.
            api = environment["PREFECT_API_URL"]
            with httpx.Client(base_url=api, timeout=ANSWER_SECONDS, trust_env=False) as client:
                wait_until(lambda: set(read_steps(client).items()) >= COMPLETED)
                steps, (flow_run,), artifacts = read_steps(client), read(client, "flow_runs"), read(client, "artifacts")
    finally:
        kill_everything(process)
    assert flow_run["state"]["type"] == "COMPLETED"
    assert set(steps.values()) == {"COMPLETED"}, steps
    assert {artifact["key"].partition("-")[0] for artifact in artifacts} >= {"contract", "audit", "report"}


def make_runner(folder: Path, store: LocalStore, environment: dict[str, str]) -> Runner:
    write_parquet(folder / "data" / "part-0.parquet", text_columns(200))
    configuration = write_tiny_configuration(folder, "away", store.root, folder / "data")
    settings = {"store": store.root, "run": "away", "train__steps": STEPS, "checkpoint__every_steps": EVERY_STEPS}
    return Runner(configuration, settings, environment)


def state_of(store: LocalStore) -> RunState:
    return Manifest(store, "away").load_head().state


def is_reported_complete(store: LocalStore) -> bool:
    """Whether the page was written after the last commit. A page of a run in training is there before."""
    folder = store.root / "runs/away"
    page, commits = folder / "report.html", (folder / "manifest").glob("*.json")
    is_written_last = page.exists() and page.stat().st_mtime_ns >= max(file.stat().st_mtime_ns for file in commits)
    return is_written_last and state_of(store).is_complete


def promoted_step(store: LocalStore) -> int:
    head = Manifest(store, "away").find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def read(client: httpx.Client, what: str) -> list[dict[str, Any]]:
    response = client.post(f"/{what}/filter", json={})
    assert response.is_success, response.text
    return list(json.loads(response.text))


def read_steps(client: httpx.Client) -> dict[str, str]:
    """Name and state of every step that the server knows of."""
    return {step["name"]: step["state"]["type"] for step in read(client, "task_runs") if step["state"]}
