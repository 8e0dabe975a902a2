"""The automations as they are on the server: made where they are missing, put right, and taken away by the last.

Invariant: each is there once, also where two deploy at one time, and stays as long as a deployment needs it. What a
person may have changed in one stays: whether it is paused, and of which events it tells.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect.automations import AutomationCore, EventTrigger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.sorting import AutomationSort
from prefect.events.filters import AutomationFilter, AutomationFilterName
from prefect.events.schemas.automations import Automation

from flows.deployed import TAG
from flows.deploying.automations import Wanted, make_automations
from flows.deploying.changes import Change
from tasks.prefect_bridge.alerts import EVENTS
from tasks.text import listed


def put_automations(client: SyncPrefectClient, team: str | None) -> tuple[list[Change], list[str]]:
    """Have the automations of all deployments, and those that tell the team: what was done, and what to know of it.

    Messages go to each notification block that has the team's name, or `holdfast` for what is told of all runs.
    """
    blocks = _find_blocks(client, team or TAG)
    wanted = [one for one in make_automations(blocks, team) if one.automation.actions]
    found = _find(client, wanted)
    made = {one.name: client.create_automation(one.automation) for one in wanted if one.name not in found}
    taken_back = _take_back(client, made, _find(client, wanted)) if made else set()
    changes, notes = [], []
    for one in wanted:
        if one.name in found:
            changes.append(_update(client, one, found[one.name][0]))
            notes += _describe_choices(one, found[one.name])
        else:
            changes.append(Change("unchanged" if one.name in taken_back else "created", "automation", one.name))
    if not blocks:
        notes.append(
            f"Nobody is told of alerts: the server has no notification block named {team or TAG!r}. Make one, and "
            "deploy again: deployments/README.md, section What alerts."
        )
    return changes, notes


def remove_automations(client: SyncPrefectClient, team: str | None) -> list[Change]:
    """Take away what no deployment on the server needs: of the team's automations, and of those of all."""
    wanted = {one.name: one for one in make_automations([], team) + make_automations([], None)}
    found = _find(client, list(wanted.values()))
    users = {tags: _find_users(client, tags) for tags in {wanted[name].tags for name in found}}
    changes = []
    for name, automations in found.items():
        if needing := users[wanted[name].tags]:
            changes.append(Change("kept", "automation", name, f"needed by {listed(needing)}"))
            continue
        for automation in automations:
            client.delete_automation(automation.id)
        changes.append(Change("removed", "automation", name))
    return changes


def _find_blocks(client: SyncPrefectClient, name: str) -> list[UUID]:
    """The notification blocks of this name, of whatever kind."""
    question: dict[str, Any] = {
        "block_documents": {"name": {"any_": [name]}},
        "block_schemas": {"block_capabilities": {"all_": ["notify"]}},
    }
    return [UUID(block["id"]) for block in client.request("POST", "/block_documents/filter", json=question).json()]


def _find_users(client: SyncPrefectClient, tags: tuple[str, ...]) -> list[str]:
    """The names of the deployments that have all these tags."""
    wanted = DeploymentFilter(tags=DeploymentFilterTags(all_=list(tags)))
    return sorted(deployment.name for deployment in client.read_deployments(deployment_filter=wanted))


def _find(client: SyncPrefectClient, wanted: Sequence[Wanted]) -> dict[str, list[Automation]]:
    """Those of these names that are there, by name, each name's in one order whoever asks."""
    names = [one.name for one in wanted]
    named = AutomationFilter(name=AutomationFilterName(any_=names))
    found = client.read_automations(automations=named, sort=AutomationSort.NAME_ASC)
    by_name = {name: [automation for automation in found if automation.name == name] for name in names}
    return {name: sorted(those, key=lambda automation: automation.id) for name, those in by_name.items() if those}


def _take_back(client: SyncPrefectClient, made: dict[str, UUID], found: dict[str, list[Automation]]) -> set[str]:
    """Of what somebody else made at the same time the first stays. The names of which ours was not it."""
    ours = {name: automation for name, automation in made.items() if found[name][0].id != automation}
    for automation in ours.values():
        client.delete_automation(automation)
    return set(ours)


def _update(client: SyncPrefectClient, wanted: Wanted, found: Automation) -> Change:
    automation = _with_choices(wanted, found)
    different = [part for part, value in _parts(automation).items() if _parts(found)[part] != value]
    if not different:
        return Change("unchanged", "automation", wanted.name)
    # Prefect's own call would leave out what is a default here, the kinds of trigger and actions, too.
    content = automation.model_dump(mode="json", exclude={"owner_resource"})
    client.request("PUT", "/automations/{id}", path_params={"id": found.id}, json=content)
    return Change("updated", "automation", wanted.name, ", ".join(different))


def _with_choices(wanted: Wanted, found: Automation) -> AutomationCore:
    """What is wanted, with what a person may have changed."""
    automation = wanted.automation.model_copy(update={"enabled": found.enabled})
    if (events := _find_chosen_events(wanted, found)) is not None:
        automation.trigger = automation.trigger.model_copy(update={"expect": events})
    return automation


def _find_chosen_events(wanted: Wanted, found: Automation) -> set[str] | None:
    if wanted.is_choosable and isinstance(found.trigger, EventTrigger):
        return found.trigger.expect
    return None


def _parts(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"description", "trigger", "actions"})


def _describe_choices(wanted: Wanted, found: list[Automation]) -> list[str]:
    """What a person has to know of an automation that was there."""
    notes = [] if found[0].enabled else [f"The automation {wanted.name} is paused, and stays so."]
    events = _find_chosen_events(wanted, found[0])
    if events is not None and (untold := sorted(set(EVENTS) - events)):
        notes.append(f"As it was changed on the server, {wanted.name} does not tell of {listed(untold)}.")
    if len(found) > 1:
        ids = " or ".join(f"`prefect automation delete --id {copy.id}`" for copy in found[1:])
        notes.append(f"{len(found)} automations are named {wanted.name}, and each acts: {ids}.")
    return notes
