"""A run audits its own ledger before it is done; the command, a real server, and a ledger of which a part is gone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.checkpoints.checkpoints import audit_key, load_checkpoint
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.commands import POLL_SECONDS, RUN_SECONDS, Runner
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

RUN = "audited.Run"  # no artifact key as it is


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, RUN, tmp_path / "store", tmp_path / "data")
    return Runner(configuration, {"store": tmp_path / "store"}, prefect_server)


def test_a_ledger_that_proves_nothing_is_an_alert_and_a_failed_flow_run(
    runner: Runner, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    store, api = LocalStore(tmp_path / "store"), prefect_server["PREFECT_API_URL"]
    runner.run()
    promoted = Manifest(store, RUN).load_head().state.promoted
    assert promoted is not None
    proof = store.root / audit_key(promoted.path)
    kept = proof.read_bytes()
    runner.run()
    assert proof.read_bytes() == kept  # what was proven once is not proven again

    # Not just any part: a save that was given up for the last one leaves a void part, which proves nothing anyway.
    named = load_checkpoint(store, promoted.path, promoted.digest).index.ledger
    assert named is not None
    part = store.root / named.key
    content = part.read_bytes()
    part.unlink()
    proof.unlink()
    failed = runner.call("run")
    assert failed.returncode == 1
    assert "The ledger of run 'audited.Run' has" in " ".join(failed.stderr.split())
    assert not proof.exists()
    flow_run = sorted(read(api, "flow_runs"), key=lambda run: str(run["start_time"]))[-1]
    assert flow_run["state"]["type"] == "FAILED"
    wanted = {("audit", "FAILED"), ("report", "COMPLETED")}
    wait_until(lambda: steps_of(api, flow_run) >= wanted)
    wait_until(lambda: alerts(api) == [f"holdfast.{store.address}/runs/{RUN}"])

    part.write_bytes(content)
    runner.run()
    assert proof.read_bytes() == kept


def read(api: str, what: str, **criteria: Any) -> list[dict[str, Any]]:
    response = httpx.post(f"{api}/{what}/filter", json=criteria, timeout=30, trust_env=False)
    assert response.is_success, response.text
    return list(response.json())


def steps_of(api: str, flow_run: dict[str, Any]) -> set[tuple[str, str]]:
    found = read(api, "task_runs", flow_runs={"id": {"any_": [flow_run["id"]]}})
    return {(step["name"], step["state"]["type"]) for step in found}


def alerts(api: str) -> list[str]:
    """What the audits' alerts are about."""
    wanted = {"filter": {"event": {"name": ["holdfast.audit-violation"]}}}
    response = httpx.post(f"{api}/events/filter", json=wanted, timeout=30, trust_env=False)
    return [event["resource"]["prefect.resource.id"] for event in response.json()["events"]]


def wait_until(condition: Callable[[], bool]) -> None:
    """The server puts what it hears of steps and events into its database some time later."""
    deadline = time.monotonic() + RUN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the server never showed it"
        time.sleep(POLL_SECONDS)
