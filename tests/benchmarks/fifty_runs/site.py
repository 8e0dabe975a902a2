"""What the runs need: Prefect's server on PostgreSQL with all its services, a team's webhooks, a worker, a reconciler.

Invariant: all processes but PostgreSQL's have the site's folder in their environment, by which they are ended, also
where this process is killed; PostgreSQL ends when they and this process are gone.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.segments import find_heartbeat
from tests.benchmarks.fifty_runs.ends import FOLDER_VARIABLE, end_processes, remove_folder
from tests.benchmarks.fifty_runs.flow_runs import forking_flow_runs
from tests.helpers.commands import COMMAND, ROOT, find_children
from tests.helpers.operators import PREFECT, WORKER, Operator, at_the_server
from tests.helpers.postgres_server import Postgres, made_postgres
from tests.helpers.prefect_server import LOG, UNUSED_SERVICES, running, running_prefect_server
from tests.helpers.swept import swept_behind
from tests.helpers.webhooks import running_webhook

TEAMS = tuple(f"team-{number}" for number in range(10))
POOL = "holdfast"
CONFIGURATION = "run.toml"
# As deployments/README.md has it for a worker.
QUERY_SECONDS = 30
# Each request is a line in the server's log. The connections are those of deployments/server.md; all else is Prefect's.
AS_OPERATED = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "true" for name in UNUSED_SERVICES} | {
    "PREFECT_SERVER_LOGGING_LEVEL": "INFO",
    "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_SIZE": "20",
    "PREFECT_SERVER_DATABASE_SQLALCHEMY_MAX_OVERFLOW": "20",
}
# As deployments/operation.md has it where dozens of runs share a server.
CLIENTS = {"PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}
READ_BY_ALL = 0o711
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Site:
    """All that is running, and what of it is measured, by name."""

    operator: Operator
    postgres: Postgres
    server_log: Path
    processes: Mapping[str, psutil.Process]

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.operator.folder / "store")

    def find_step(self, run: str) -> int | None:
        """The step of the last heartbeat of the process that trains the run, if there is one."""
        head = Manifest(self.store, run).find_head()
        lease = head.state.lease if head is not None else None
        beat = find_heartbeat(self.store, run, lease.fence) if lease is not None else None
        return None if beat is None else beat.step

    def deploy(self, run: str, team: str, *arguments: str) -> None:
        """`holdfast deploy`; and the worker starts its flow runs by a command of ours."""
        typed = self.operator.type("deploy", CONFIGURATION, "--set", f"run={run}", "--tag", team, *arguments)
        assert typed.returncode == 0, typed.stdout + typed.stderr

    def have_forked(self, run: str, command: str) -> None:
        """Have the worker start the run's flow runs by this command."""
        deployment = self.operator.deployment(f"scheduled/{run}")
        variables = {**deployment["job_variables"], "command": command}
        self.operator.request("PATCH", f"/deployments/{deployment['id']}", json={"job_variables": variables})


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, in which temporary folders are made, too. It goes with the block, and with this process."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fifty-"))
    folder.chmod(READ_BY_ALL)  # PostgreSQL is another user's, and has a folder below it
    with swept_behind(remove_folder, str(folder)), patch.object(tempfile, "tempdir", str(folder)):
        yield folder


@contextmanager
def operated(folder: Path) -> Iterator[tuple[Site, str]]:
    """The site, whose operator's folder is `folder`, and the command by which flow runs are forked."""
    home = folder / "prefect"
    home.mkdir()
    with ExitStack() as stack:
        postgres = stack.enter_context(made_postgres())
        database = stack.enter_context(postgres.serving())
        settings = AS_OPERATED | {FOLDER_VARIABLE: str(folder)}
        server = CLIENTS | stack.enter_context(
            running_prefect_server(home, with_automations=True, database=postgres.url, settings=settings)
        )
        stack.enter_context(swept_behind(end_processes, str(folder)))
        operator = stack.enter_context(at_the_server(folder, server))
        address, _ = stack.enter_context(running_webhook())
        _tell_teams(server, address)
        operator.request("POST", "/work_pools/", json={"name": POOL, "type": "process"})
        command = stack.enter_context(forking_flow_runs(folder, server))
        asking = {**server, "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS)}
        worker = stack.enter_context(running([*PREFECT, *WORKER], asking, operator.worker_log, folder))
        (folder / "store").mkdir(exist_ok=True)
        reconciling = [*COMMAND, "reconcile", str(folder / "store")]
        as_installed = {**server, "PYTHONPATH": str(ROOT)}
        reconciler = stack.enter_context(running(reconciling, as_installed, folder / "reconciler.log", folder))
        (prefect,), (flow_runs,) = find_children("prefect server start"), find_children("fifty_runs.flow_runs")
        processes = {
            "Prefect's server": prefect, "PostgreSQL": psutil.Process(database.pid),
            "reconciler": psutil.Process(reconciler.pid), "worker": psutil.Process(worker.pid),
            "flow runs": flow_runs,
        }  # fmt: skip
        try:
            yield Site(operator, postgres, home / LOG, processes), command
        finally:
            end_processes(str(folder))  # all at once: the worker, asked to leave, would wait for each run to save


def _tell_teams(server: Mapping[str, str], address: str) -> None:
    with temporary_settings({PREFECT_API_URL: server["PREFECT_API_URL"]}):
        for name in (POOL, *TEAMS):
            hook = CustomWebhookNotificationBlock(name="hook", url=address, json_data={"text": "{{subject}}"})
            hook.save(name, overwrite=True)
