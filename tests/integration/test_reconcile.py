"""What `holdfast reconcile` does on a real Prefect server, and whom it tells by a real notification block.

The clock by which looks are counted is set by hand: `unit/tasks/reconciling` has what follows from which looks.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow, task
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Late, Pending, Running, Suspended

from flows.deploying import run_deployment
from flows.deploying.run_deployment import ENVIRONMENT, RunDeployment, find_deployment, put_deployment
from storage.objects.addresses import run_address
from storage.objects.local_store import LocalStore
from storage.segment_notes import FlowRunsRecord, write_flow_runs
from tasks.prefect_bridge import run_deployments
from tasks.prefect_bridge.notifications import load_notifiers
from tasks.prefect_bridge.private.server_requests import find_heartbeats
from tasks.prefect_bridge.run_deployments import is_under_way
from tasks.reconciling.consequences import PrefectConsequences
from tasks.reconciling.outbox import Outbox
from tasks.reconciling.reconciler import ServerWatch
from tasks.reconciling.store_watch import StoreWatch
from tasks.reconciling.terms import BEATS
from tests.helpers.commands import COMMAND, call_here, wait_until
from tests.helpers.prefect_server import RETRIES_WHILE_BUSY, find_free_port, running
from tests.helpers.reconciled import (
    LOOK_SECONDS,
    LOOKS_A_MINUTE,
    LOOKS_UNTIL_DEAD,
    LOOKS_UNTIL_LONE_DEAD,
    Clock,
    Holder,
    hold,
    put_run,
)
from tests.helpers.webhooks import running_webhook

pytestmark = pytest.mark.server


@task
def step() -> None: ...


@pytest.fixture
def client(prefect_server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    settings = {PREFECT_API_URL: prefect_server["PREFECT_API_URL"], PREFECT_CLIENT_MAX_RETRIES: RETRIES_WHILE_BUSY}
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, list[str]]]:
    with running_webhook() as webhook:
        yield webhook


class Server:
    """What a test has on the server of all tests, under a tag of its own."""

    def __init__(self, client: SyncPrefectClient, store: LocalStore, tag: str) -> None:
        self.client, self.store, self.tag = client, store, tag

    def deploy(self, run: str, cron: str = "0 0 1 1 *") -> DeploymentResponse:
        """As `holdfast deploy` does. Without a `cron` no tick falls into the test."""
        name, address = f"{self.tag}-{run}", run_address(self.store, run)
        wanted = RunDeployment(name, address, "/run.toml", (), "/", self.tag, cron, None)
        put_deployment(self.client, wanted, None)
        return self.deployment(run)

    def deployment(self, run: str) -> DeploymentResponse:
        found = find_deployment(self.client, f"{self.tag}-{run}", run_address(self.store, run))
        assert found is not None
        return found

    def begin(self, run: str, state: State) -> FlowRun:
        """A flow run of the run's deployment that took its lease, and is in this state by now."""
        begun = self.client.create_flow_run_from_deployment(self.deployment(run).id)
        self.client.set_flow_run_state(begun.id, state, force=True)
        return begun

    def flow_runs(self, run: str, is_planned: bool) -> list[FlowRun]:
        """Those that the schedule has planned, or all others."""
        those = DeploymentFilter(id=DeploymentFilterId(any_=[self.deployment(run).id]))
        return [one for one in self.client.read_flow_runs(deployment_filter=those) if one.auto_scheduled is is_planned]

    def state_of(self, flow_run: FlowRun) -> str | None:
        state = self.client.read_flow_run(flow_run.id).state
        return None if state is None else state.name

    def hear(self, *flow_runs: FlowRun, ahead: timedelta = timedelta()) -> None:
        """A heartbeat of each, as Prefect's engine sends it from a host whose clock is so far ahead."""
        before = find_heartbeats(self.client, [one.id for one in flow_runs])
        events = [
            {
                "id": str(uuid4()),
                "occurred": (datetime.now(UTC) + ahead).isoformat(),
                "event": "prefect.flow-run.heartbeat",
                "resource": {"prefect.resource.id": f"prefect.flow-run.{one.id}", "prefect.resource.name": one.name},
            }
            for one in flow_runs
        ]
        httpx.post(f"{self.client.api_url}events", json=events).raise_for_status()

        def have_arrived() -> bool:
            now = find_heartbeats(self.client, [one.id for one in flow_runs])
            return all(now.get(one.id) not in (None, before.get(one.id)) for one in flow_runs)

        assert wait_until(have_arrived)

    def put_late(self, run: str, number: int) -> list[FlowRun]:
        """So many ticks of the schedule that no worker took, the oldest first."""
        assert wait_until(lambda: len(self.flow_runs(run, is_planned=True)) >= number)
        ticks = sorted(self.flow_runs(run, is_planned=True), key=lambda one: str(one.expected_start_time))[:number]
        for tick in ticks:
            self.client.set_flow_run_state(tick.id, Late(scheduled_time=tick.expected_start_time), force=True)
        return ticks


@pytest.fixture
def server(client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    tag = f"reconciled-{uuid4().hex[:8]}"
    monkeypatch.setattr(run_deployment, "TAG", tag)  # other tests deploy to the same server
    client.create_work_pool(WorkPoolCreate(name=tag, type="process"))  # nobody works here
    found = Server(client, LocalStore(tmp_path / "store"), tag)
    yield found
    for one in client.read_deployments():
        if tag in one.tags:
            client.delete_deployment(one.id)
    client.delete_work_pool(tag)


class Reconciling:
    """A watch over the store, on the server, by the block of the server's tag."""

    def __init__(self, server: Server, webhook: str) -> None:
        text = {"text": "{{subject}}\n{{body}}"}
        CustomWebhookNotificationBlock(name="hook", url=webhook, json_data=text).save(server.tag)
        self.clock = Clock()
        self.outbox = Outbox(load_notifiers(server.client, server.tag))
        self.server_watch = ServerWatch(self.clock)
        self.watch = StoreWatch(
            server.store, "a test", PrefectConsequences(server.tag), self.outbox, self.server_watch.pages, self.clock
        )

    def look(self, times: int = 1, beats: Holder | None = None) -> None:
        for _ in range(times):
            self.clock.now += LOOK_SECONDS
            if beats is not None:
                beats.beat()
            self.server_watch.look()
            self.watch.look()
            self.outbox.send_all()


@pytest.fixture
def reconciling(server: Server, webhook: tuple[str, list[str]]) -> Reconciling:
    return Reconciling(server, webhook[0])


@flow
def train() -> None: ...


def test_a_dead_run_goes_on_a_complete_one_rests_and_somebody_is_told(
    server: Server, reconciling: Reconciling, webhook: tuple[str, list[str]]
) -> None:
    address, texts = webhook
    holder = hold(server.store, "dead")
    put_run(server.store, "done")
    put_run(server.store, "waits", "budget")
    suspended = hold(server.store, "suspended")
    for run in ("dead", "done", "suspended"):
        server.deploy(run)
    server.deploy("waits", cron="* * * * *")
    outer, inner = server.begin("dead", Running()), server.client.create_flow_run(train, state=Running())
    works = server.client.create_task_run(step, inner.id, dynamic_key="0", state=Running())
    write_flow_runs(server.store, "dead", holder.fence, FlowRunsRecord(ids=[str(inner.id), str(outer.id)]))
    paused: State[None] = Suspended(timeout_seconds=600)
    rests, within = server.begin("suspended", paused), server.client.create_flow_run(train, state=Running())
    ids = [str(within.id), str(rests.id)]
    write_flow_runs(server.store, "suspended", suspended.fence, FlowRunsRecord(ids=ids))
    late = server.put_late("waits", 3)

    reconciling.look(LOOKS_UNTIL_DEAD - 1)
    assert [server.state_of(one) for one in (outer, inner)] == ["Running", "Running"]
    assert [schedule.active for schedule in server.deployment("done").schedules] == [False]
    assert [server.state_of(one) for one in late] == ["Skipped", "Skipped", "Late"]

    reconciling.look(LOOKS_UNTIL_DEAD)
    assert [server.state_of(one) for one in (outer, inner)] == ["Crashed", "Crashed"]
    state = server.client.read_task_run(works.id).state
    assert state is not None and state.name == "Crashed"
    (following,) = [one for one in server.flow_runs("dead", is_planned=False) if one.id != outer.id]
    assert server.state_of(following) == "Scheduled"
    assert following.parameters == {"configuration": "/run.toml"}
    assert [server.state_of(one) for one in (rests, within)] == ["Suspended", "Running"]
    assert [one.id for one in server.flow_runs("suspended", is_planned=False)] == [rests.id]

    subjects = sorted(text.partition("\n")[0] for text in texts)
    assert subjects == ["[warning] run-dead: dead", "[warning] run-dead: suspended"]
    (told,) = [text for text in texts if "run-dead: dead" in text]
    assert f"{server.store.address}/runs/dead" in told and following.name in told
    assert address not in "".join(server.store.read(key).decode() for key in server.store.list_keys("reconciler/"))


def test_a_flow_run_that_a_worker_took_and_never_began_does_not_keep_the_next_one_from_beginning(
    server: Server, reconciling: Reconciling, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that the worker of the dead machine had just taken: it stays pending."""
    holder = hold(server.store, "dead")
    server.deploy("dead")
    held, taken = server.begin("dead", Running()), server.begin("dead", Pending())
    write_flow_runs(server.store, "dead", holder.fence, FlowRunsRecord(ids=[str(held.id)]))
    reconciling.look(LOOKS_UNTIL_DEAD + 2)
    assert [server.state_of(one) for one in (held, taken)] == ["Crashed", "Pending"]
    assert len(server.flow_runs("dead", is_planned=False)) == 2

    monkeypatch.setattr(run_deployments, "PENDING_SECONDS", 0.0)
    reconciling.look(3)
    (following,) = [one for one in server.flow_runs("dead", is_planned=False) if one.id not in (held.id, taken.id)]
    assert server.state_of(following) == "Scheduled"
    (text,) = [text for text in webhook[1] if "run-dead: dead" in text and server.store.address in text]
    assert "is under way, or begins within seconds" in text


def test_a_flow_run_that_died_before_it_held_its_run_is_crashed_with_those_within_it_and_none_that_may_live(
    server: Server, reconciling: Reconciling
) -> None:
    holder = hold(server.store, "held")
    for run in ("dies", "lives", "held", "unheard"):
        server.deploy(run)
    dies, lives, held, unheard = (server.begin(run, Running()) for run in ("dies", "lives", "held", "unheard"))
    around = server.client.create_task_run(step, dies.id, dynamic_key="0", state=Running())
    within = server.client.create_flow_run(train, parent_task_run_id=around.id, state=Running())
    cancelled = server.client.create_flow_run(train, parent_task_run_id=around.id, state=Cancelled())
    works = server.client.create_task_run(step, within.id, dynamic_key="1", state=Running())
    server.hear(dies, held)
    server.hear(lives, ahead=timedelta(minutes=20))
    all_of_them = (dies, within, cancelled, lives, held, unheard)

    reconciling.look(LOOKS_UNTIL_LONE_DEAD - LOOKS_A_MINUTE, beats=holder)
    server.hear(lives)  # its clock was set back: the event is older than the one before
    reconciling.look(LOOKS_A_MINUTE - 1, beats=holder)
    states = [server.state_of(one) for one in all_of_them]
    assert states == ["Running", "Running", "Cancelled", "Running", "Running", "Running"]
    assert is_under_way(server.client, server.deployment("dies"))

    reconciling.look(1, beats=holder)
    states = [server.state_of(one) for one in all_of_them]
    assert states == ["Crashed", "Crashed", "Cancelled", "Running", "Running", "Running"]
    steps = [server.client.read_task_run(one.id).state for one in (around, works)]
    assert [state.name if state is not None else None for state in steps] == ["Crashed", "Crashed"]
    assert not is_under_way(server.client, server.deployment("dies"))


def test_a_flow_run_is_heard_by_what_prefects_engine_sends(
    client: SyncPrefectClient, prefect_server: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "flow_that_is_heard.py"
    script.write_text(
        "from prefect import flow\nfrom prefect.runtime import flow_run\n\n\n"
        "@flow\ndef heard():\n    print(flow_run.id)\n\n\nheard()\n"
    )
    environment = {
        **prefect_server,
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": ENVIRONMENT["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"],
    }
    said = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True).stdout
    id = UUID(said.split()[-1])
    assert wait_until(lambda: id in find_heartbeats(client, [uuid4(), id]))


def test_of_a_dead_run_whose_schedule_is_paused_nothing_is_begun(server: Server, reconciling: Reconciling) -> None:
    hold(server.store, "paused")
    deployment = server.deploy("paused")
    (schedule,) = deployment.schedules
    assert schedule.id is not None
    server.client.update_deployment_schedule(deployment.id, schedule.id, active=False)
    reconciling.look(LOOKS_UNTIL_DEAD + 1)
    assert server.flow_runs("paused", is_planned=False) == []


def test_that_the_server_is_away_is_told_without_it_and_that_it_is_back(
    reconciling: Reconciling, webhook: tuple[str, list[str]]
) -> None:
    texts = webhook[1]
    reconciling.look()
    texts.clear()
    nobody = f"http://127.0.0.1:{find_free_port()}/api"
    with temporary_settings({PREFECT_API_URL: nobody}):
        reconciling.look(LOOKS_UNTIL_DEAD + 1)
    assert [text.partition("\n")[0] for text in texts] == [f"[critical] server-away: {nobody}"]
    reconciling.look(2)
    assert [text.partition("\n")[0] for text in texts[1:]] == [f"[over] server-away: {nobody}"]


def test_the_command_watches_until_a_signal_shows_all_runs_and_prints_no_address_of_a_webhook(
    server: Server, webhook: tuple[str, list[str]], prefect_server: dict[str, str], tmp_path: Path
) -> None:
    put_run(server.store, "run", "budget")
    CustomWebhookNotificationBlock(name="hook", url=webhook[0], json_data={"text": "{{body}}"}).save(server.tag)
    log, page, port = tmp_path / "log", tmp_path / "runs.html", find_free_port()
    shown = ["--page", str(page), "--metrics-port", str(port)]
    command = [*COMMAND, "reconcile", str(server.store.root), "--every", "1", "--tag", server.tag, *shown]
    with running(command, prefect_server, log, tmp_path) as process:
        assert wait_until(lambda: bool(list(server.store.list_keys(BEATS))) and page.exists(), process), log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert f'holdfast_store_runs{{store="{server.store.address}"}} 1.0' in answer.read().decode()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, log.read_text()
    printed = log.read_text()
    assert "Watching 1 store" in printed and "Traceback" not in printed
    assert "secret-hook" not in printed
    assert b'"is_over":true' in server.store.read(f"{BEATS}000001.json")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (["nowhere"], "there is no folder"),
        (["store"], "No Prefect server is configured"),
        (["s4://bucket"], "expected s3://bucket/prefix"),
        (["store", "--page", "missing/runs.html"], "there is no folder missing"),
    ],
)
def test_what_a_user_has_to_put_right_is_one_message(
    where: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none.toml"))
    with temporary_settings({PREFECT_API_URL: None}):
        result = call_here(["reconcile", *where])
    assert result.returncode == 2, result.stderr
    assert words in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
