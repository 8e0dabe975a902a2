"""What follows the last step, from outside: the evaluation, supervised as a segment is, and the audit of the ledger.

One run serves both.
"""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.checkpoints.checkpoints import load_checkpoint
from storage.checkpoints.results import audit_key
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord
from tests.helpers.commands import (
    RUN_SECONDS,
    Runner,
    StartedCommand,
    kill_everything,
    processes_mentioning,
    wait_until,
)
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import ANSWER_SECONDS
from tests.helpers.tiny_runs import write_tiny_configuration
from training.agents.rank import TITLE

RUN = "audited.Run"  # no artifact key as it is
# Ranks start in silence: for longer than that takes on a busy machine.
HANG_SECONDS = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Runner:
    """A run whose last step is made, and that was killed while it was evaluated."""
    folder = tmp_path_factory.mktemp("trained")
    write_parquet(folder / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(folder, RUN, folder / "store", folder / "data")
    settings = {"store": folder / "store", "run": RUN, "retry__delay_seconds": 0.1}
    runner = Runner(configuration, settings, prefect_server)
    runner.prepare()
    process = runner.start()
    try:
        stop_evaluating_ranks(runner, process)
    finally:
        kill_everything(process)
    return runner


@pytest.fixture
def audited(trained: Runner) -> Runner:
    """The same run when it is complete."""
    if not proof_of(trained).exists():
        trained.run()
    return trained


def test_an_evaluation_that_was_killed_or_hangs_is_made_again_and_nobody_evaluates_beside_it(trained: Runner) -> None:
    assert trained.status()["state"] == "lost"
    process = trained.start(segment__hang_seconds=HANG_SECONDS)
    try:
        stop_evaluating_ranks(trained, process)
        second = trained.call("run")
        assert second.returncode == 2
        assert f"is being evaluated by process {process.pid}" in words(second.stderr)
        assert process.wait(RUN_SECONDS) == 0, trained.log.read_text()
    finally:
        kill_everything(process)
    assert f"reported nothing for {HANG_SECONDS} s (segment.hang_seconds) and were killed" in words(
        trained.log.read_text()
    )
    status = trained.status()
    assert (status["state"], len(status["segments"]), status["steps_lost_total"]) == ("completed", 1, 0)
    assert processes_mentioning(str(trained.settings["store"])) == []


@pytest.mark.slow
def test_a_ledger_that_proves_nothing_is_an_alert_and_a_failed_flow_run(
    audited: Runner, prefect_server: dict[str, str]
) -> None:
    store, api = LocalStore(Path(audited.settings["store"])), prefect_server["PREFECT_API_URL"]
    proof, promoted = proof_of(audited), promoted_of(audited)
    kept = proof.read_bytes()
    # Not just any part: a save that was given up for the last one leaves a void part, which proves nothing anyway.
    named = load_checkpoint(store, promoted.path, promoted.digest).index.ledger
    assert named is not None
    part = store.root / named.key
    part.unlink()
    audited.run()
    assert proof.read_bytes() == kept  # what was proven once is not proven again

    proof.unlink()
    failed = audited.call("run", retry__store_seconds=1, retry__reread_seconds=0)
    assert failed.returncode == 1
    assert "The ledger of run 'audited.Run' has" in words(failed.stderr)
    assert not proof.exists()
    of_this_run = {"flow_runs": {"name": {"any_": [RUN]}}}
    flow_run = sorted(read(api, "flow_runs", **of_this_run), key=lambda run: str(run["start_time"]))[-1]
    assert flow_run["state"]["type"] == "FAILED"
    wanted = {("audit", "FAILED"), ("report", "COMPLETED")}
    # The server puts what it hears of steps and events into its database some time later.
    wait_until(lambda: steps_of(api, flow_run) >= wanted)
    wait_until(lambda: alerts(api, store) == [f"holdfast.{store.address}/runs/{RUN}"])


def stop_evaluating_ranks(runner: Runner, process: StartedCommand) -> None:
    """Wait for the ranks of the evaluation, and let them stand still."""
    scratch = Path(runner.settings["store"]) / ".tmp/scratch/runs" / RUN

    def find() -> list[int]:
        if not any(scratch.glob("evaluation-*")):  # to look through all processes takes long
            return []
        return [pid for pid in processes_mentioning(f"{scratch}/evaluation-") if command_line(pid).startswith(TITLE)]

    assert wait_until(lambda: bool(find()), process), runner.log.read_text()
    for pid in find():
        os.kill(pid, signal.SIGSTOP)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def promoted_of(runner: Runner) -> CheckpointRecord:
    promoted = Manifest(LocalStore(Path(runner.settings["store"])), RUN).load_head().state.promoted
    assert promoted is not None
    return promoted


def proof_of(runner: Runner) -> Path:
    """Where the audit of the run's model is kept."""
    return Path(runner.settings["store"]) / audit_key(promoted_of(runner).path)


def words(text: str) -> str:
    return " ".join(text.split())


def read(api: str, what: str, **criteria: Any) -> list[dict[str, Any]]:
    response = httpx.post(f"{api}/{what}/filter", json=criteria, timeout=ANSWER_SECONDS, trust_env=False)
    assert response.is_success, response.text
    return list(response.json())


def steps_of(api: str, flow_run: dict[str, Any]) -> set[tuple[str, str]]:
    found = read(api, "task_runs", flow_runs={"id": {"any_": [flow_run["id"]]}})
    return {(step["name"], step["state"]["type"]) for step in found}


def alerts(api: str, store: LocalStore) -> list[str]:
    """What the audits' alerts are about, of all that concern this store."""
    wanted = {"filter": {"event": {"name": ["holdfast.audit-violation"]}}}
    response = httpx.post(f"{api}/events/filter", json=wanted, timeout=ANSWER_SECONDS, trust_env=False)
    about = [str(event["resource"]["prefect.resource.id"]) for event in response.json()["events"]]
    return [resource for resource in about if resource.startswith(f"holdfast.{store.address}/")]
