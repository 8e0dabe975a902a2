"""The deployments of runs on Prefect's server, as `holdfast deploy` made them, and what is begun and ended for a run.

Invariant: a deployment's run is told by its label, and what a person has set stays: of a deployment that is paused, or
whose schedule is, nothing is begun; of a flow run that a person has paused or cancelled nothing is changed; and no flow
run that a person has asked for is ended. All raise `httpx.HTTPError` and `PrefectException`.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Completed

from tasks.prefect_bridge.flow_runs import SKIPPED, UNDER_WAY

# By which automations and the reconciler know what is ours.
TAG = "holdfast"
RUN_LABEL = "holdfast.run"
# By which ours is known among the schedules of a deployment.
SLUG = "holdfast"
AT_A_TIME = 200  # a server gives no more
SOON_SECONDS = 30.0
# A worker has started the process of a flow run by then. One whose machine died before it did stays pending for ever.
PENDING_SECONDS = 60.0
LATE = "Late"  # by the server's own clock
WISHES_OF_PEOPLE = (StateType.PAUSED, StateType.CANCELLING, StateType.CANCELLED)


def find_run_deployments(
    client: SyncPrefectClient, addresses: Collection[str], tag: str = TAG
) -> dict[str, DeploymentResponse]:
    """The deployments of these runs, by the runs' addresses."""
    return {run: one for run, one in _read_deployments(client, tag) if run in addresses}


def find_running(client: SyncPrefectClient, folder: str, held: Collection[str], tag: str = TAG) -> list[FlowRun]:
    """The flow runs shown as running of the deployments of runs in a store, but for those of `held` runs.

    `folder`: what the addresses of the store's runs begin with. A run need not have begun.
    """
    theirs = [one for run, one in _read_deployments(client, tag) if run.startswith(folder) and run not in held]
    if not theirs:
        return []
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    return list(_read(client, theirs, FlowRunFilter(state=running)))


def find_wish(
    client: SyncPrefectClient, ids: Sequence[UUID], wishes: Sequence[StateType] = WISHES_OF_PEOPLE
) -> FlowRun | None:
    """The one of these flow runs that a person has paused, or whose end a person has asked for."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(wishes)))
    if not ids:
        return None
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(ids)), state=states))
    return found[0] if found else None


def why_nothing_begins(deployment: DeploymentResponse) -> str | None:
    """What a person has paused, so that no flow run is to be begun; None if nothing."""
    if deployment.paused:
        return "the deployment is paused"
    if not any(schedule.active for schedule in deployment.schedules):
        return "its schedule is paused"
    return None


def is_under_way(client: SyncPrefectClient, deployment: DeploymentResponse) -> bool:
    """Whether a flow run of it works, or is about to begin."""
    types = FlowRunFilterState(type=FlowRunFilterStateType(any_=[*UNDER_WAY, StateType.SCHEDULED]))
    return any(_begins_soon(one) for one in _read(client, [deployment], FlowRunFilter(state=types)))


def begin_next(client: SyncPrefectClient, deployment: DeploymentResponse, key: str) -> FlowRun:
    """Have a worker begin the next flow run, with the deployment's parameters; of one `key` it is always the same."""
    return client.create_flow_run_from_deployment(deployment.id, idempotency_key=key)


def pause_schedule(client: SyncPrefectClient, deployment: DeploymentResponse) -> bool:
    """Pause the schedule that `holdfast deploy` made; whether it was active."""
    ours = [schedule for schedule in deployment.schedules if schedule.slug == SLUG and schedule.active]
    for schedule in ours:
        assert schedule.id is not None, "the server has given it one"
        client.update_deployment_schedule(deployment.id, schedule.id, active=False)
    return bool(ours)


def end_late(client: SyncPrefectClient, deployments: Collection[DeploymentResponse]) -> int:
    """End the ticks of schedules that no worker has taken, but for the newest of each deployment; how many.

    Which are late, the server says. One that a worker takes at this moment ends as one too many: the newest goes on.
    """
    if not deployments:
        return 0
    late = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=[LATE])))
    ticks = [one for one in _read(client, deployments, late) if one.auto_scheduled]
    newest: dict[UUID | None, datetime] = {}
    for one in ticks:
        newest[one.deployment_id] = max(newest.get(one.deployment_id, _due(one)), _due(one))
    superfluous = [one for one in ticks if _due(one) < newest[one.deployment_id]]
    for one in superfluous:
        skipped: State[None] = Completed(name=SKIPPED, message="No worker took it in time; a later one begins instead.")
        client.set_flow_run_state(one.id, skipped)
    return len(superfluous)


def _read_deployments(client: SyncPrefectClient, tag: str) -> Iterator[tuple[str, DeploymentResponse]]:
    """The deployments of runs, each with the run's address."""
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[tag]))
    offset = 0
    while page := client.read_deployments(deployment_filter=ours, limit=AT_A_TIME, offset=offset):
        yield from ((str(one.labels[RUN_LABEL]), one) for one in page if RUN_LABEL in one.labels)
        offset += len(page)
        if len(page) < AT_A_TIME:
            return


def _read(
    client: SyncPrefectClient, deployments: Collection[DeploymentResponse], wanted: FlowRunFilter
) -> Iterator[FlowRun]:
    of_these = DeploymentFilter(id=DeploymentFilterId(any_=[one.id for one in deployments]))
    offset = 0
    while page := client.read_flow_runs(
        deployment_filter=of_these, flow_run_filter=wanted, limit=AT_A_TIME, offset=offset
    ):
        yield from page
        offset += len(page)
        if len(page) < AT_A_TIME:
            return


def _begins_soon(flow_run: FlowRun) -> bool:
    """Whether it works already, or begins within seconds. By a wrong clock one too many is begun, and skipped."""
    state, now = flow_run.state, datetime.now(UTC)
    if state is None or state.type == StateType.SCHEDULED:
        return _due(flow_run) <= now + timedelta(seconds=SOON_SECONDS)
    return state.type != StateType.PENDING or now - state.timestamp < timedelta(seconds=PENDING_SECONDS)


def _due(flow_run: FlowRun) -> datetime:
    return flow_run.expected_start_time or datetime.min.replace(tzinfo=UTC)
