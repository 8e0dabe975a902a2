"""A holder of the lease that was stopped on this machine is named to whoever looks, and keeps its run."""

import io
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.events.schemas.events import Event
from rich.console import Console

from flows.commands.status import render_status
from flows.commands.stop import stop_run
from storage.errors import ConfigurationError, RunBusyError
from storage.objects.local_store import LocalStore
from storage.runs.holders import find_stopped
from storage.runs.manifest import Manifest
from storage.runs.run_state import Lease
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import take_lease
from tasks.prefect_bridge.alerts import NO_PROGRESS
from tasks.recovery.settle import require_dead_holder
from tasks.reporting.status import read_status
from tasks.run_paths import RunPaths
from tasks.supervision.standing_still import SILENCE_SECONDS, describe_stopped
from tests.helpers.holders import holder_of
from tests.helpers.runs import make_run


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    store = LocalStore(tmp_path / "store")
    return RunPaths(store, make_run(store), tmp_path / "scratch", tmp_path / "data")


@pytest.fixture
def lease(run_paths: RunPaths, holder: "subprocess.Popen[bytes]") -> Lease:
    """Of the process, which was stopped; its heartbeat is a little older than is waited for elsewhere."""
    lease = run_paths.manifest.commit("segment began", take_lease(holder_of(holder.pid), world_size=2)).state.lease
    assert lease is not None
    beat(run_paths, lease, SILENCE_SECONDS + 5)
    holder.send_signal(signal.SIGSTOP)
    while not find_stopped(lease.holder):
        time.sleep(0.01)  # Linux stops a process when it runs next
    return lease


def beat(run_paths: RunPaths, lease: Lease, age_seconds: float) -> None:
    beat = Heartbeat(beat=7, step=34, written_at=time.time() - age_seconds)
    write_heartbeat(run_paths.store, "run", lease.fence, beat)


def test_whoever_wants_the_run_is_told_what_to_do_and_so_is_who_is_on_call(
    run_paths: RunPaths, lease: Lease, told: Callable[[], list[Event]]
) -> None:
    with pytest.raises(RunBusyError) as busy:
        require_dead_holder(run_paths, lease)
    pid = lease.holder.pid
    assert f"Process {pid} on" in str(busy.value) and "is stopped (by SIGSTOP, Ctrl-Z or a debugger)" in str(busy.value)
    assert f"`kill -CONT {pid}`" in str(busy.value) and f"`kill -KILL {pid}`" in str(busy.value)
    (event,) = told()
    assert (event.event, event.resource.id) == (NO_PROGRESS, f"holdfast.{run_paths.store.address}/runs/run")
    assert event.payload["message"] == str(busy.value)
    assert run_paths.manifest.load_head().state.lease == lease


def test_status_calls_it_silent_and_has_the_same_words(run_paths: RunPaths, lease: Lease) -> None:
    status = read_status(run_paths.store, "run")
    assert status["state"] == "silent"
    console = Console(file=io.StringIO(), width=1000)
    console.print(render_status(status))
    assert describe_stopped(run_paths.store, "run", lease) in console.file.getvalue()  # type: ignore[attr-defined]


def test_stop_does_not_wait_for_it(run_paths: RunPaths, lease: Lease) -> None:
    with pytest.raises(ConfigurationError, match=rf"No process can save and end now.* `kill -CONT {lease.holder.pid}`"):
        stop_run(run_paths.store, "run", wait=True)


def test_who_is_stopped_for_a_moment_or_goes_on_again_is_in_training(
    run_paths: RunPaths, lease: Lease, holder: "subprocess.Popen[bytes]", told: Callable[[], list[Event]]
) -> None:
    beat(run_paths, lease, SILENCE_SECONDS - 5)
    with pytest.raises(RunBusyError, match="is being trained by process"):
        require_dead_holder(run_paths, lease)
    assert read_status(run_paths.store, "run")["state"] == "running"
    beat(run_paths, lease, SILENCE_SECONDS + 5)
    holder.send_signal(signal.SIGCONT)
    while find_stopped(lease.holder):
        time.sleep(0.01)  # as above
    with pytest.raises(RunBusyError, match="is being trained by process"):
        require_dead_holder(run_paths, lease)
    assert told() == []


def test_after_it_is_killed_the_run_can_be_taken(
    run_paths: RunPaths, lease: Lease, holder: "subprocess.Popen[bytes]"
) -> None:
    holder.kill()
    holder.wait()
    require_dead_holder(run_paths, lease)
    assert Manifest(run_paths.store, "run").load_head().state.lease == lease
