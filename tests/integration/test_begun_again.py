"""A flow run that Prefect begins again waits for the process that still works for it, and for no other one."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.objects.local_store import LocalStore
from storage.runs.run_state import Lease
from storage.runs.transitions import take_lease
from storage.segment_notes import FlowRunsRecord, StopRecord, find_stop, write_flow_runs
from tasks.prefect_bridge.begun_again import wait_for_earlier_process
from tasks.run_paths import RunPaths
from tests.helpers.commands import wait_until
from tests.helpers.holders import holder_of
from tests.helpers.runs import make_run

pytestmark = pytest.mark.server


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    store = LocalStore(tmp_path / "store")
    return RunPaths(store, make_run(store), tmp_path / "scratch", tmp_path / "data")


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that works for a run."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def lease(run_paths: RunPaths, holder: "subprocess.Popen[bytes]") -> Lease:
    lease = run_paths.manifest.commit("segment began", take_lease(holder_of(holder.pid), world_size=1)).state.lease
    assert lease is not None
    return lease


def stop_of(run_paths: RunPaths, lease: Lease) -> StopRecord | None:
    return find_stop(run_paths.store, "run", lease.fence)


def begin_again(run_paths: RunPaths, lease: Lease, ids: list[str]) -> None:
    """As a flow run; the lease was taken in those of these ids, "own" for its own."""

    @flow
    def train() -> None:
        own = FlowRunsRecord(ids=[str(flow_run.id) if id == "own" else id for id in ids])
        write_flow_runs(run_paths.store, "run", lease.fence, own)
        wait_for_earlier_process(run_paths, lease, grace_seconds=60)

    train()


def test_the_earlier_process_is_asked_to_hand_over_and_waited_for(
    run_paths: RunPaths, lease: Lease, holder: "subprocess.Popen[bytes]", prefect_server: dict[str, str]
) -> None:
    def leave() -> None:
        wait_until(lambda: stop_of(run_paths, lease) is not None)
        holder.kill()
        holder.wait()

    leaving = threading.Thread(target=leave)
    leaving.start()
    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        begin_again(run_paths, lease, ["own"])
    assert holder.returncode is not None  # not before it had left
    leaving.join()
    stop = stop_of(run_paths, lease)
    assert stop is not None and stop.is_handed_over


def test_the_process_of_another_flow_run_is_neither_asked_nor_waited_for(
    run_paths: RunPaths, lease: Lease, holder: "subprocess.Popen[bytes]", prefect_server: dict[str, str]
) -> None:
    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        begin_again(run_paths, lease, ["01a21621-3022-7dac-979c-8c3ce7dfc5a0"])
    assert stop_of(run_paths, lease) is None
    assert holder.poll() is None
