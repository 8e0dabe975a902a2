"""Where runs are operated as in production: PostgreSQL, Prefect's server on it, Ceph, a reconciler, and two machines.

Invariant: whoever observes does not go the way that is disturbed: the store is read past the link that workers use.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import httpx
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.objects.addresses import open_store
from storage.objects.store import Store
from tasks.corpora.generate import generate_corpus
from tests.helpers.ceph_server import running_ceph_server
from tests.helpers.commands import COMMAND, ROOT
from tests.helpers.fault_plans import FaultPlan, StepFault
from tests.helpers.operators import CORPUS_ROWS, PREFECT, Operator
from tests.helpers.postgres_server import Postgres, made_postgres
from tests.helpers.prefect_server import (
    ANSWER_SECONDS,
    clean_environment,
    find_free_port,
    running,
    wait_until_healthy,
)
from tests.helpers.s3_server import BUCKET, s3_environment
from tests.helpers.webhooks import running_webhook
from tests.operating.link import Link, running_link
from tests.operating.machines import Machine, running_machines, wait_for_worker

MACHINES = ("alpha", "beta")
POOL = "holdfast"
COMPLETE = "[info] run-complete"
ADDRESS = f"s3://{BUCKET}/operated"
QUERY_SECONDS = 15  # how often a worker asks for flow runs; deployments/server.md says what it means for outages


@dataclass
class Services:
    """What Prefect needs, each of which can be killed and started again."""

    folder: Path
    postgres: Postgres
    port: int = field(default_factory=find_free_port)
    _database: ExitStack = field(default_factory=ExitStack)
    _server: ExitStack = field(default_factory=ExitStack)

    @property
    def environment(self) -> dict[str, str]:
        """For whoever uses the server."""
        return {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_HOME": str(self.folder),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_CLI_PROMPT": "false",
            "PREFECT_CLI_COLORS": "false",
            "DO_NOT_TRACK": "1",
        }

    def start_database(self) -> None:
        self._database.enter_context(self.postgres.serving())

    def stop_database(self) -> None:
        self._database.close()

    def start_server(self) -> None:
        """With all services that it has by default."""
        given = {
            **clean_environment(), **self.environment, "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_API_DATABASE_CONNECTION_URL": self.postgres.url,
        }  # fmt: skip
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        process = self._server.enter_context(running(command, given, self.folder / "server.log", self.folder))
        self._server.callback(process.kill)
        wait_until_healthy(given)

    def kill_server(self) -> None:
        self._server.close()


class Ceph:
    """The S3 server's user, who can be refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuse(self) -> None:
        self._admin("suspend")

    def accept(self) -> None:
        self._admin("enable")

    def _admin(self, what: str) -> None:
        command = ["radosgw-admin", "-c", str(self._folder / "ceph.conf"), "user", what, "--uid=tests"]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=60)


@dataclass
class Place:
    """All of it. `told`: what arrived at the webhook, by its first line; `environment`: of workers."""

    folder: Path
    services: Services
    ceph: Ceph
    link: Link
    machines: dict[str, Machine]
    environment: Mapping[str, str]
    operator: Operator
    store: Store
    texts: list[str]
    typing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def told(self) -> list[str]:
        """The subjects."""
        return [text.partition("\n")[0] for text in self.texts]

    def type(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """`holdfast` with these arguments; one at a time, since it is this process that prints."""
        with self.typing:
            return self.operator.type(*arguments)

    def start_worker(self, name: str, **more: str) -> None:
        machine = self.machines[name]
        machine.start_worker({**self.environment, **more}, POOL, self.folder)
        wait_for_worker(machine)


@contextmanager
def made_place(folder: Path) -> Iterator[Place]:
    """Everything is up, and nothing is deployed."""
    home, ceph = folder / "prefect", folder / "ceph"
    for one in (home, ceph):
        one.mkdir(parents=True)
    generate_corpus(folder / "corpus", "policy", CORPUS_ROWS)
    with ExitStack() as stack:
        services = Services(home, stack.enter_context(made_postgres()))
        stack.callback(services.stop_database)
        stack.callback(services.kill_server)
        services.start_database()
        services.start_server()
        endpoint = stack.enter_context(running_ceph_server(ceph))
        link = stack.enter_context(running_link(endpoint))
        stack.enter_context(patch.dict(os.environ, s3_environment(endpoint, AWS_DEFAULT_REGION="us-east-1")))
        url, texts = stack.enter_context(running_webhook())
        environment = _environment_of_workers(folder, services, link)
        api = stack.enter_context(
            httpx.Client(base_url=services.environment["PREFECT_API_URL"], trust_env=False, timeout=ANSWER_SECONDS)
        )
        with temporary_settings({PREFECT_API_URL: services.environment["PREFECT_API_URL"]}):
            text = {"text": "{{subject}}\n{{body}}"}
            CustomWebhookNotificationBlock(name="hook", url=url, json_data=text).save("holdfast")
        machines = stack.enter_context(running_machines(MACHINES, folder))
        store = open_store(ADDRESS, cache=folder / "cache")
        log = folder / "worker.log"
        operator = Operator(api, folder, log)
        operator.request("POST", "/work_pools/", json={"name": POOL, "type": "process"})
        _deploy_form(folder, environment)
        place = Place(folder, services, Ceph(ceph), link, machines, environment, operator, store, texts)
        for name in MACHINES:
            place.start_worker(name)
        command = [*COMMAND, "reconcile", ADDRESS]
        stack.enter_context(running(command, environment, folder / "reconciler.log", folder))
        yield place


def _deploy_form(folder: Path, environment: Mapping[str, str]) -> None:
    """*resume*, as deployments/README.md has it."""
    line = ["deploy", "--name", "resume", "--prefect-file", str(ROOT / "deployments/prefect.yaml")]
    done = subprocess.run([*PREFECT, *line], env=dict(environment), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _environment_of_workers(folder: Path, services: Services, link: Link) -> dict[str, str]:
    """As deployments/README.md has it. Not real: each step takes a tenth of a second longer, so that both processors
    are free for many runs."""
    slow = FaultPlan().having(StepFault("slow"))
    return {
        **clean_environment(),
        **services.environment,
        **s3_environment(link.endpoint, AWS_DEFAULT_REGION="us-east-1"),
        "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS),
        "PYTHONPATH": str(ROOT),
        **slow.environment(folder / "slow", []),
    }
