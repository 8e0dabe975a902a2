"""Requests to Prefect's server for which its client has no call, or one that leaves out what we need.

Private: `SyncPrefectClient.request`, and the routes and fields of the server's API, which Prefect may change with any
version. All raise what the client's own calls raise: `PrefectHTTPStatusError` and `httpx.TransportError`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

from prefect.automations import AutomationCore
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.filters import AutomationFilter, AutomationFilterName
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

USES = ("prefect.client.orchestration.SyncPrefectClient.request",)
# What the engine of a flow run sends every so often, about a resource of this name.
HEARTBEAT = "prefect.flow-run.heartbeat"
RESOURCE_OF_A_FLOW_RUN = "prefect.flow-run."
# The hosts of flow runs write the times of these; one whose clock is ahead is heard all the same.
MOST_AHEAD = timedelta(days=1)
ASKED_TOGETHER = 200  # SQLite takes 999 values in a query, if it is an old one


class Found(Automation):
    """An automation that is on the server, and when the server was asked for it."""

    created: datetime


def require_api(client: SyncPrefectClient, seconds: float) -> None:
    """Raises `PrefectHTTPStatusError`, `JSONDecodeError` or `httpx.TransportError` if there is no Prefect's API.

    Asks for the version, by `/admin/version`. The client's `api_version` has no time limit of its own. Without it a
    wrong address or a missing password is found only by the first call, which waits longer.
    """
    # Not the page about its health, which is for everybody.
    client.request("GET", "/admin/version", timeout=seconds).json()


def find_notification_blocks(client: SyncPrefectClient, name: str) -> list[UUID]:
    """The notification blocks of this name, of whatever kind.

    Asks `/block_documents/filter`. The client's calls find blocks of one kind, or all that there are. Without it nobody
    is told of alerts.
    """
    question: dict[str, Any] = {
        "block_documents": {"name": {"any_": [name]}},
        "block_schemas": {"block_capabilities": {"all_": ["notify"]}},
    }
    return [UUID(block["id"]) for block in client.request("POST", "/block_documents/filter", json=question).json()]


def find_automations(client: SyncPrefectClient, names: Sequence[str]) -> list[Found]:
    """The automations of these names.

    Asks `/automations/filter`. The client's `read_automations` leaves out when they were created. Without it two that
    deploy at one time could leave two automations of one name.
    """
    named = AutomationFilter(name=AutomationFilterName(any_=list(names)))
    answer = client.request("POST", "/automations/filter", json={"automations": named.model_dump(mode="json")})
    return Found.model_validate_list(answer.json())


def replace_automation(client: SyncPrefectClient, id: UUID, automation: AutomationCore) -> None:
    """Put this in the place of an automation. Raises `ObjectNotFound` if it is gone.

    Asks `PUT /automations/{id}`. The client's `update_automation` leaves out what is a default here, the kinds of
    trigger and actions, too. Without it an automation of an earlier version stays as it is.
    """
    content = automation.model_dump(mode="json", exclude={"owner_resource"})
    try:
        client.request("PUT", "/automations/{id}", path_params={"id": id}, json=content)
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            raise ObjectNotFound(error) from error
        raise


def create_deployment(client: SyncPrefectClient, content: Mapping[str, Any]) -> None:
    """Create a deployment of these fields.

    Asks `POST /deployments/`. The client's `create_deployment` has no labels, by which we know whose a deployment is.
    Without it `holdfast deploy` makes no deployment.
    """
    client.request("POST", "/deployments/", json=dict(content))


def find_heartbeats(client: SyncPrefectClient, ids: Sequence[UUID]) -> dict[UUID, str]:
    """What is known of the heartbeats of these flow runs: a text that is another one after each further heartbeat.

    A flow run that never sent one is left out. How many there are counts first: an order by the times that hosts write
    would hide all heartbeats of a host whose clock was set back.
    Asks `/events/count-by/resource`. The client's `read_events` gives 50 events at most, of however many flow runs.
    Without it a flow run that died before it held a run is shown as running for ever, and no next one is begun.
    """
    found: dict[UUID, str] = {}
    for start in range(0, len(ids), ASKED_TOGETHER):
        of_these = [f"{RESOURCE_OF_A_FLOW_RUN}{id}" for id in ids[start : start + ASKED_TOGETHER]]
        question: dict[str, Any] = {
            "occurred": {"until": (datetime.now(UTC) + MOST_AHEAD).isoformat()},
            "event": {"name": [HEARTBEAT]},
            "resource": {"id": of_these},
        }
        answer = client.request(
            "POST", "/events/count-by/{countable}", path_params={"countable": "resource"}, json={"filter": question}
        )
        for one in answer.json():
            id = UUID(str(one["value"]).removeprefix(RESOURCE_OF_A_FLOW_RUN))
            found[id] = f"{one['count']} {one['end_time']}"
    return found
