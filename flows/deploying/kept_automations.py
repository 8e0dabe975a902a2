"""The automations as they are on the server: made where they are missing, put right, and taken away by the last.

Those of earlier versions that the reconciler has made superfluous are taken away whoever deploys. Invariant: each other
one is there once, also where two deploy at one time, and stays as long as a deployment needs it. The server refuses no
second one of a name, so whoever wrote looks again afterwards. What a person may have changed in one stays: whether it
is paused, and of which events it tells.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from prefect.automations import AutomationCore, EventTrigger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import PrefectHTTPStatusError

from flows.deploying.automations import Wanted, make_automations, superfluous_names
from flows.deploying.changes import Change
from tasks.prefect_bridge.alerts import EVENTS
from tasks.prefect_bridge.private.server_requests import (
    Found,
    find_automations,
    find_notification_blocks,
    replace_automation,
)
from tasks.prefect_bridge.run_deployments import TAG
from tasks.text import listed

# Why a superfluous one is taken away.
RECONCILED = "the reconciler does it: holdfast reconcile STORE"


def put_automations(client: SyncPrefectClient, team: str | None) -> tuple[list[Change], list[str]]:
    """Have the automations that tell the team, and no superfluous ones: what was done, and what to know of it.

    Messages go to each notification block that has the team's name, or `holdfast` for what is told of all runs.
    """
    blocks = find_notification_blocks(client, team or TAG)
    wanted = [one for one in make_automations(blocks, team) if one.automation.actions]
    superfluous = superfluous_names(team)
    found = _find(client, [*(one.name for one in wanted), *superfluous])
    made = _make(client, [one.automation for one in wanted if one.name not in found])
    changes, notes = [], []
    for one in wanted:
        if one.name in found:
            changes.append(_update(client, one, found[one.name][0]))
            notes += _describe_choices(one, found[one.name])
        else:
            changes.append(Change("created" if one.name in made else "unchanged", "automation", one.name))
    changes += _remove_superfluous(client, superfluous, found)
    if not blocks:
        notes.append(
            f"Nobody is told of alerts: the server has no notification block named {team or TAG!r}. Make one, and "
            "deploy again: deployments/README.md, section What alerts."
        )
    return changes, notes


def remove_automations(client: SyncPrefectClient, team: str | None) -> list[Change]:
    """Take away what no deployment on the server needs, of the team's and of those of all, and what is superfluous."""
    wanted = {one.name: one for one in make_automations([], team) + make_automations([], None)}
    superfluous = superfluous_names(team)
    found = _find(client, [*wanted, *superfluous])
    needless = [_remove(client, name, one.tags, found[name]) for name, one in wanted.items() if name in found]
    return needless + _remove_superfluous(client, superfluous, found)


def _remove_superfluous(
    client: SyncPrefectClient, superfluous: Sequence[str], found: Mapping[str, Sequence[Found]]
) -> list[Change]:
    """Take those away that were found, with all of their names, whatever deployments are there."""
    there = [name for name in superfluous if name in found]
    for name in there:
        for automation in found[name]:
            _delete(client, automation)
    return [Change("removed", "automation", name, RECONCILED) for name in there]


def _remove(client: SyncPrefectClient, name: str, tags: tuple[str, ...], automations: Sequence[Found]) -> Change:
    """Take an automation away, with all of its name, unless a deployment needs it.

    A deployment that was made meanwhile may have found it, so that nobody made one for it: then it is made again.
    """
    users = _find_users(client, tags)
    if not users:
        for automation in automations:
            _delete(client, automation)
        users = _find_users(client, tags)
        if not users:
            return Change("removed", "automation", name)
        _make(client, [AutomationCore.model_validate(automations[0].model_dump(exclude={"id", "created"}))])
    return Change("kept", "automation", name, f"needed by {listed(users)}")


def _find_users(client: SyncPrefectClient, tags: tuple[str, ...]) -> list[str]:
    """The names of the deployments that have all these tags."""
    wanted = DeploymentFilter(tags=DeploymentFilterTags(all_=list(tags)))
    return sorted(deployment.name for deployment in client.read_deployments(deployment_filter=wanted))


def _find(client: SyncPrefectClient, names: Sequence[str]) -> dict[str, list[Found]]:
    """Those of these names that are there, by name; of each name the first first, whoever asks."""
    found = sorted(find_automations(client, names), key=lambda one: (one.created, one.id))
    by_name = {name: [one for one in found if one.name == name] for name in names}
    return {name: those for name, those in by_name.items() if those}


def _make(client: SyncPrefectClient, automations: Sequence[AutomationCore]) -> set[str]:
    """Make automations whose names were not there, each once, whoever else does so now; the names of which ours stays.

    The first of a name stays, and each who made one takes all others away, whosever they are: that it was asked for
    first says nothing about who sees whose. Of two the one that comes to be there later is always seen by its maker
    together with the other, and with that who dies before looking leaves no second one either.
    """
    ours = [client.create_automation(automation) for automation in automations]
    found = _find(client, [automation.name for automation in automations]) if ours else {}
    for _, *others in found.values():
        for other in others:
            _delete(client, other)
    return {name for name, (first, *_) in found.items() if first.id in ours}


def _delete(client: SyncPrefectClient, automation: Found) -> None:
    """Take one away, if somebody else did not just now."""
    try:
        client.delete_automation(automation.id)
    except PrefectHTTPStatusError as error:
        if error.response.status_code != HTTPStatus.NOT_FOUND:
            raise


def _update(client: SyncPrefectClient, wanted: Wanted, found: Found) -> Change:
    automation = _with_choices(wanted, found)
    different = [part for part, value in _parts(automation).items() if _parts(found)[part] != value]
    if not different:
        return Change("unchanged", "automation", wanted.name)
    replace_automation(client, found.id, automation)
    return Change("updated", "automation", wanted.name, ", ".join(different))


def _with_choices(wanted: Wanted, found: Found) -> AutomationCore:
    """What is wanted, with what a person may have changed."""
    automation = wanted.automation.model_copy(update={"enabled": found.enabled})
    if (events := _find_chosen_events(wanted, found)) is not None:
        automation.trigger = automation.trigger.model_copy(update={"expect": events})
    return automation


def _find_chosen_events(wanted: Wanted, found: Found) -> set[str] | None:
    if wanted.is_choosable and isinstance(found.trigger, EventTrigger):
        return found.trigger.expect
    return None


def _parts(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"description", "trigger", "actions"})


def _describe_choices(wanted: Wanted, found: list[Found]) -> list[str]:
    """What a person has to know of an automation that was there."""
    notes = [] if found[0].enabled else [f"The automation {wanted.name} is paused, and stays so."]
    events = _find_chosen_events(wanted, found[0])
    if events is not None and (untold := sorted(set(EVENTS) - events)):
        notes.append(f"As it was changed on the server, {wanted.name} does not tell of {listed(untold)}.")
    if len(found) > 1:
        ids = " or ".join(f"`prefect automation delete --id {copy.id}`" for copy in found[1:])
        notes.append(f"{len(found)} automations are named {wanted.name}, and each acts: {ids}.")
    return notes
