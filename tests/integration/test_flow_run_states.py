"""What a process learns of its own flow run from a real Prefect server, and says of it: whether somebody cancels it,

begins it again in another process, calls it ended though it goes on; and of those of a dead process.
"""

import uuid
from pathlib import Path

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Running, Scheduled, Suspended

from storage.objects.local_store import LocalStore
from storage.segment_notes import FlowRunsRecord, write_flow_runs
from tasks.prefect_bridge import flow_runs
from tasks.prefect_bridge.flow_runs import (
    call_running,
    call_suspended,
    find_line,
    is_called_over,
    is_cancelled,
    is_to_begin,
)
from tasks.prefect_bridge.stale_flow_runs import close_flow_runs
from tasks.prefect_bridge.suspension import find_pause
from tasks.run_paths import RunPaths
from tests.helpers.prefect_server import find_free_port
from tests.helpers.reconciled import put_run
from tests.helpers.runs import lease_run, make_run

pytestmark = pytest.mark.server


@flow
def inner(outer: str, cancelled: str) -> tuple[bool, bool]:
    """Cancels itself, the flow run within which it runs, or none; whether it sees that before and after."""
    before, which = is_cancelled(find_line()), {"inner": str(flow_run.id), "outer": outer}.get(cancelled)
    if which is not None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(which), Cancelling(), force=True)
    return before, is_cancelled(find_line())


@pytest.mark.parametrize("cancelled", ["inner", "outer", "neither"])
def test_a_flow_run_sees_that_it_or_the_one_around_it_is_cancelled(
    cancelled: str, prefect_server: dict[str, str]
) -> None:
    seen: list[tuple[bool, bool]] = []

    @flow
    def outer() -> None:
        seen.append(inner(str(flow_run.id), cancelled))

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        outer()
    assert seen == [(False, cancelled != "neither")]


def test_a_server_that_is_away_cancels_nothing(prefect_server: dict[str, str]) -> None:
    @flow
    def away() -> bool:
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
            return is_cancelled(find_line())

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert away() is False


@flow
def outer() -> None: ...


@flow
def within() -> None: ...


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_suspended_flow_run_is_shown_as_that_again_with_the_one_within_it(
    is_resumed: bool, prefect_server: dict[str, str]
) -> None:
    with (
        temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        line = [client.create_flow_run(one, state=Running()) for one in (within, outer)]
        paused: State[None] = Suspended(timeout_seconds=600)
        client.set_flow_run_state(line[1].id, Scheduled() if is_resumed else paused, force=True)
        call_suspended(line)
        inner, outermost = (client.read_flow_run(one.id).state for one in line)
        assert inner is not None and outermost is not None
        if is_resumed:
            assert (inner.name, outermost.name) == ("Running", "Scheduled")
            return
        assert (inner.name, outermost.name) == ("Suspended", "Suspended")
        assert len(client.read_flow_run_states(line[1].id)) == 3
        assert outermost.state_details.pause_timeout == paused.state_details.pause_timeout
        # Resumed, the one around it begins it again.
        assert client.set_flow_run_state(line[0].id, Running()).status == SetStateStatus.ACCEPT


@task
def train() -> None: ...


@flow
def training() -> None: ...


def test_flow_runs_whose_process_was_killed_are_shown_as_crashed_with_all_their_steps(
    tmp_path: Path, prefect_server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_runs, "STEPS_AT_A_TIME", 2)
    store = LocalStore(tmp_path / "store")
    run_paths = RunPaths(store, make_run(store), tmp_path / "scratch", tmp_path / "data")
    fence = lease_run(run_paths.manifest)
    lease = run_paths.manifest.load_head().state.lease
    assert lease is not None
    dead = lease.model_copy(update={"holder": lease.holder.model_copy(update={"pid": lease.holder.pid + 1})})
    with (
        temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        left = client.create_flow_run(training, state=Running())
        ended = client.create_flow_run(training, state=Completed())
        states: list[State[None]] = [Completed(), Running(), Running(), Completed(), Completed(), Running()]
        steps = [
            client.create_task_run(train, left.id, dynamic_key=str(key), state=state)
            for key, state in enumerate(states)
        ]
        write_flow_runs(store, "run", fence, FlowRunsRecord(ids=[str(left.id), str(ended.id)]))
        close_flow_runs(run_paths, dead)
        shown = [client.read_flow_run(run.id).state for run in (left, ended)]
        shown += [client.read_task_run(step.id).state for step in steps]
    assert [state.type.value for state in shown if state is not None] == [
        "CRASHED", "COMPLETED", "COMPLETED", "CRASHED", "CRASHED", "COMPLETED", "COMPLETED", "CRASHED",
    ]  # fmt: skip
    assert shown[0] is not None and "was killed" in (shown[0].message or "")


@pytest.mark.parametrize(("called", "is_put_right"), [(Crashed(), True), (Cancelled(), False)])
def test_a_flow_run_that_goes_on_is_called_running_again_unless_somebody_cancelled_it(
    called: State, is_put_right: bool, prefect_server: dict[str, str]
) -> None:
    @flow
    def goes_on() -> tuple[bool, list[str]]:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(str(flow_run.id)), called, force=True)
        line = find_line()
        call_running(line, "It trains on.")
        return is_called_over(line), [str(one.state.name) for one in find_line() if one.state is not None]

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert goes_on() == (is_put_right, ["Running" if is_put_right else "Cancelled"])


def test_a_flow_run_of_no_deployment_is_not_begun_again_by_a_worker(prefect_server: dict[str, str]) -> None:
    @flow
    def scheduled_by_force() -> bool:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(str(flow_run.id)), Scheduled(), force=True)
        return is_to_begin(find_line())

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert scheduled_by_force() is False


@pytest.mark.parametrize(("state", "leaves_it"), [(Suspended(timeout_seconds=600), True), (Cancelled(), False)])
def test_a_tick_of_a_schedule_leaves_a_run_alone_that_a_person_has_paused_and_one_that_a_person_begins_does_not(
    state: State, leaves_it: bool, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    store = LocalStore(tmp_path / "store")
    run_paths = RunPaths(store, put_run(store, "run", "preempted"), tmp_path / "scratch", tmp_path / "data")
    (segment,) = run_paths.manifest.load_head().state.segments

    @flow
    def begun(is_tick: bool) -> str | None:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        context.flow_run.auto_scheduled = is_tick  # as those are that the server has planned
        return find_pause(run_paths)

    with (
        temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        within, last = (client.create_flow_run(training, state=Running()) for _ in range(2))
        for one in (within, last):
            client.set_flow_run_state(one.id, state, force=True)
        write_flow_runs(store, "run", segment.fence, FlowRunsRecord(ids=[str(within.id), str(last.id)]))
        assert begun(is_tick=False) is None
        why = begun(is_tick=True)
        assert (why is not None and last.name in why) is leaves_it, why
        client.set_flow_run_state(last.id, Running(), force=True)  # resumed, and what is within it not yet
        assert begun(is_tick=True) is None
        client.set_flow_run_state(last.id, state, force=True)
        lease_run(run_paths.manifest)  # by whoever has resumed it
        assert begun(is_tick=True) is None
