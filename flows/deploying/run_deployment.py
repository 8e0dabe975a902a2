"""The deployment of one run on a Prefect server: what is wanted of it, made where it is missing, put right, taken away.

Invariant: a deployment belongs to the run whose address is its label; another one of this name is left alone. What a
person may have changed stays: whether the deployment or its schedule is paused, further schedules, a limit, and
further settings for the worker's processes.
"""

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkerFilter,
    WorkerFilterStatus,
)
from prefect.client.schemas.objects import StateType, WorkerStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from flows.deploying.changes import Change
from flows.deploying.schedules import Schedule, describe_schedule, make_schedule
from flows.scheduled import scheduled
from storage.errors import ConfigurationError
from storage.objects.addresses import RUNS_FOLDER
from tasks.prefect_bridge.private.server_requests import create_deployment
from tasks.prefect_bridge.run_deployments import RUN_LABEL, SLUG, TAG
from tasks.text import listed

ENTRYPOINT = "holdfast.deployments.scheduled"
# As in deployments/prefect.yaml, which says what each is for. By the heartbeats the reconciler knows a flow run for
# dead that holds no run.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "holdfast",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}
# Prefect's fields in words, and those whose value is said.
WORDS = {
    "work_pool_name": "work pool",
    "tags": "tags",
    "parameters": "another configuration",
    "pull_steps": "another folder",
    "entrypoint": "another flow",
    "job_variables": "other settings of its processes",
    "description": "another description",
    "parameter_openapi_schema": "another form",
    "enforce_parameter_schema": "a form that is checked",
}
SHOWN = ("work_pool_name", "tags")
BESIDE = "Have this beside the server, so that states are true and the run goes on after its machine died"
DESCRIPTION = """\
Trains {run}, until it is complete or its machine is taken away; the next flow run goes on. One that finds the run
complete ends at once, one that finds it in training is skipped.

Made by `holdfast deploy`; the configuration is {configuration}.
"""


@dataclass(frozen=True)
class RunDeployment:
    """What is wanted: the worker does in `folder` what `holdfast run CONFIGURATION --set ...` would do there."""

    name: str
    run: str  # the run's address
    configuration: str  # absolute path
    assignments: tuple[str, ...]
    folder: str
    pool: str
    cron: str | None  # None: every five minutes
    team: str | None

    @property
    def full_name(self) -> str:
        return full_name(self.name)

    @property
    def reconcile(self) -> str:
        """The command that watches its store, as it is typed."""
        store = self.run.rpartition(f"/{RUNS_FOLDER}/")[0]
        team = [] if self.team is None else ["--tag", self.team]
        return shlex.join(["holdfast", "reconcile", store or "/", *team])

    @cached_property
    def schedule(self) -> Schedule:
        """Raises `ConfigurationError`."""
        return make_schedule(self.cron, self.run)

    def fields(self, found: DeploymentResponse | None) -> dict[str, Any]:
        """What the deployment's fields are to be, by Prefect's names for them."""
        variables = {} if found is None else found.job_variables
        given = {"assignments": list(self.assignments)} if self.assignments else {}
        return {
            "work_pool_name": self.pool,
            "tags": [TAG] if self.team is None else [TAG, self.team],
            "parameters": {"configuration": self.configuration, **given},
            "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": self.folder}}],
            "entrypoint": ENTRYPOINT,
            "job_variables": {**variables, "env": {**variables.get("env", {}), **ENVIRONMENT}},
            "description": DESCRIPTION.format(run=self.run, configuration=self.configuration),
            "parameter_openapi_schema": json.loads(scheduled.parameters.model_dump_json(exclude_unset=True)),
            "enforce_parameter_schema": True,
        }


def full_name(name: str) -> str:
    """FLOW/DEPLOYMENT, as Prefect's commands take it."""
    return f"{scheduled.name}/{name}"


def find_deployment(client: SyncPrefectClient, name: str, run: str) -> DeploymentResponse | None:
    """The run's deployment of this name. Raises `ConfigurationError` if it is of something else."""
    try:
        found = client.read_deployment_by_name(full_name(name))
    except ObjectNotFound:
        return None
    if (owner := found.labels.get(RUN_LABEL)) == run:
        return found
    whose = f"is of the run {owner}" if owner else "was not made by `holdfast deploy`"
    raise ConfigurationError(
        f"The deployment {full_name(name)} on the server {whose}, and is left as it is. With --name the deployment of "
        f"{run} has another name. To delete the one that is there: `prefect deployment delete {full_name(name)}`"
    )


def put_deployment(
    client: SyncPrefectClient, wanted: RunDeployment, found: DeploymentResponse | None
) -> tuple[list[Change], list[str]]:
    """Have the run's deployment, `found` or new, and its schedule as is wanted: what was done, and what to know of it.

    Raises `ConfigurationError` if the work pool is not there, or the schedule is none.
    """
    schedule = wanted.schedule
    notes = _look_at_pool(client, wanted.pool)
    if found is None:
        _create(client, wanted)
        return [
            Change("created", "deployment", wanted.full_name, f"of {wanted.run}, on the work pool {wanted.pool}"),
            Change("created", "schedule", wanted.full_name, describe_schedule(schedule)),
        ], [*notes, f"{BESIDE}: {wanted.reconcile}"]
    done = [_update(client, wanted, found), _put_schedule(client, wanted, found)]
    return done, _describe_pauses(found) + notes


def describe_flow_runs(client: SyncPrefectClient, found: DeploymentResponse) -> list[str]:
    """The flow runs that go on when their deployment is taken away, and how each is ended."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
    flow_runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[found.id])),
        flow_run_filter=FlowRunFilter(state=states),
    )
    return [
        f"The flow run {flow_run.name} is under way and goes on. To end it: holdfast stop {found.labels[RUN_LABEL]}"
        for flow_run in flow_runs
    ]


def remove_deployment(client: SyncPrefectClient, found: DeploymentResponse) -> Change:
    """Take a deployment away, with its schedules and what they have planned: what was done."""
    client.delete_deployment(found.id)
    return Change("removed", "deployment", full_name(found.name), "and its schedule")


def team_of(found: DeploymentResponse) -> str | None:
    """The team whose tag a deployment has."""
    return next((tag for tag in found.tags if tag != TAG), None)


def _look_at_pool(client: SyncPrefectClient, pool: str) -> list[str]:
    """Whether a worker is there. Raises `ConfigurationError` if there is no such pool."""
    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        raise ConfigurationError(
            f"The server has no work pool {pool!r}. Give another one with --pool, or create it: `prefect work-pool "
            f"create {pool} --type process`"
        ) from None
    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    if client.read_workers_for_work_pool(pool, worker_filter=online):
        return []
    return [f"No worker of the pool {pool} is there. On each machine that trains: prefect worker start --pool {pool}"]


def _create(client: SyncPrefectClient, wanted: RunDeployment) -> None:
    content = wanted.fields(None) | {
        "name": wanted.name,
        "flow_id": str(client.create_flow_from_name(scheduled.name)),
        "labels": {RUN_LABEL: wanted.run},
        "schedules": [{"schedule": wanted.schedule.model_dump(mode="json"), "active": True, "slug": SLUG}],
    }
    create_deployment(client, content)


def _update(client: SyncPrefectClient, wanted: RunDeployment, found: DeploymentResponse) -> Change:
    fields = wanted.fields(found)
    different = {field: value for field, value in fields.items() if getattr(found, field) != value}
    if not different:
        return Change("unchanged", "deployment", wanted.full_name)
    client.update_deployment(found.id, DeploymentUpdate(**different))
    changed = [
        f"{WORDS[field]} {listed(value) if field == 'tags' else value}" if field in SHOWN else WORDS[field]
        for field, value in different.items()
    ]
    return Change("updated", "deployment", wanted.full_name, f"now {', '.join(changed)}")


def _put_schedule(client: SyncPrefectClient, wanted: RunDeployment, found: DeploymentResponse) -> Change:
    ours = next((schedule for schedule in found.schedules if schedule.slug == SLUG), None)
    if ours is None:
        made = DeploymentScheduleCreate(schedule=wanted.schedule, active=True, slug=SLUG)
        client.create_deployment_schedules(found.id, [made])
        return Change("created", "schedule", wanted.full_name, describe_schedule(wanted.schedule))
    if ours.schedule == wanted.schedule:
        return Change("unchanged", "schedule", wanted.full_name)
    client.update_deployment_schedule(found.id, ours.id, schedule=wanted.schedule)
    was, now = describe_schedule(ours.schedule), describe_schedule(wanted.schedule)
    return Change("updated", "schedule", wanted.full_name, f"{was} before; now {now}")


def _describe_pauses(found: DeploymentResponse) -> list[str]:
    """What a person has paused, and how it goes on."""
    name = full_name(found.name)
    paused = [schedule for schedule in found.schedules if schedule.slug == SLUG and not schedule.active]
    notes = [
        f"The schedule was paused, and stays so: prefect deployment schedule resume {name} {schedule.id}"
        for schedule in paused
    ]
    return notes + ([f"The deployment {name} was paused in the UI, and stays so."] if found.paused else [])
