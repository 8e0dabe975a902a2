"""`holdfast deploy`: a run that a Prefect server goes on with by a schedule, on the workers of a pool, with alerts.

Invariant: the line that is typed says all of it. Typed twice it changes nothing the second time, and with `--remove` it
takes away what it made, and what no deployment needs any more. It starts no server.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import AsJson, Assignments
from flows.commands.results import print_result
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import flows.deploying.changes as changes
    import flows.deploying.kept_automations as kept_automations
    import flows.deploying.run_deployment as run_deployment
    import flows.prefect_server as prefect_server
    import storage.objects.addresses as addresses
    import storage.objects.s3.address as bucket_addresses
    import tasks.config.load as settings

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from tasks.configuration.run import RunConfig

POOL = "holdfast"
# As the name of a block may be: the team's notification block has it.
TEAM = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
TAG_OF_ALL = "holdfast"
WITH_USER = re.compile(r"//[^/]*@")


def deploy(
    configuration: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="Configuration file (TOML); workers find it under the same path. If not given: only the automations, "
            "for deployments that were made in another way.",
        ),
    ] = None,
    assignments: Assignments = None,
    pool: Annotated[str, typer.Option(metavar="POOL", help="Work pool whose workers train the run.")] = POOL,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="CRON",
            help="When a flow run begins that goes on with the run, in UTC. Default: every five minutes, at other "
            "seconds for each run, so that not all begin at once.",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(
            metavar="TEAM",
            help="A tag for its flow runs. Alerts then go to the notification blocks of this name. If not given: to "
            "those that are named holdfast.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The deployment's name. Default: the run's name.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take away what this command made.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have a Prefect server go on with a run by a schedule.

    On the server that PREFECT_API_URL names. Typed again it changes what is different now: what is not given has its
    default, and a pause that a person set stays. A flow run that has begun goes on, also after --remove.
    """
    _require_names(tag, name)
    _require_no_secret(assignments or [])
    if configuration is None and (assignments or name or schedule is not None or pool != POOL):
        raise ConfigurationError(
            "--set, --name, --pool and --schedule are of one run's deployment: give its CONFIG too. Without one the "
            "command makes only the automations."
        )
    config = None if configuration is None else settings.load_configuration(configuration, assignments or [])
    with prefect_server.asking_server() as client:
        if remove:
            found = _remove(client, config, name, tag)
        else:
            wanted = None
            if config is not None and configuration is not None:
                folder, path = str(Path.cwd()), os.path.abspath(configuration)  # noqa: PTH100 - links stay as they are
                wanted = run_deployment.RunDeployment(
                    name or config.run, _address(config), path, tuple(assignments or []), folder, pool, schedule, tag
                )
            found = _put(client, wanted, tag)
    print_result(found, as_json, _render)


def _require_names(tag: str | None, name: str | None) -> None:
    if tag is not None and (not TEAM.fullmatch(tag) or tag == TAG_OF_ALL):
        raise ConfigurationError(
            f"--tag {tag!r}: a team's name has small letters, digits and single dashes between them, as Prefect's "
            f"blocks have it, and is not {TAG_OF_ALL!r}, the tag of all."
        )
    if name is not None and not re.fullmatch(addresses.RUN_NAME_PATTERN, name):
        raise ConfigurationError(
            f"--name {name!r}: a name has letters, digits, dots, dashes and underscores, and begins with one of the "
            "first two."
        )


def _require_no_secret(assignments: list[str]) -> None:
    """Whoever sees the server's UI sees them."""
    for assignment in assignments:
        if WITH_USER.search(assignment):
            raise ConfigurationError(
                f"--set {bucket_addresses.without_secrets(assignment)}: an address with a user name or a password in "
                "it is not put on the server, where everybody reads it. Credentials belong into the environment of the "
                "workers."
            )


def _address(config: RunConfig) -> str:
    """The run's, without opening its store: who deploys need not reach it. Raises `ConfigurationError`."""
    return f"{addresses.find_store_address(config.store)}/{addresses.RUNS_FOLDER}/{config.run}"


def _put(client: SyncPrefectClient, wanted: run_deployment.RunDeployment | None, team: str | None) -> dict[str, Any]:
    if wanted is None:
        return _describe(None, *kept_automations.put_automations(client, team))
    before = run_deployment.find_deployment(client, wanted.name, wanted.run)
    done, notes = run_deployment.put_deployment(client, wanted, before)
    automations, more_notes = kept_automations.put_automations(client, team)
    done += automations
    if before is not None and run_deployment.team_of(before) != team:
        left = kept_automations.remove_automations(client, run_deployment.team_of(before))
        done += [change for change in left if change.did == "removed"]
    return _describe(wanted.full_name, done, notes + more_notes)


def _remove(client: SyncPrefectClient, config: RunConfig | None, name: str | None, team: str | None) -> dict[str, Any]:
    if config is None:
        return _describe(None, kept_automations.remove_automations(client, team), [])
    name = name or config.run
    found = run_deployment.find_deployment(client, name, _address(config))
    done, notes = [], []
    if found is not None:
        notes = run_deployment.describe_flow_runs(client, found)
        done.append(run_deployment.remove_deployment(client, found))
        team = run_deployment.team_of(found)
    done += kept_automations.remove_automations(client, team)
    return _describe(run_deployment.full_name(name), done, notes if done else ["There was nothing to remove."])


def _describe(deployment: str | None, done: list[changes.Change], notes: list[str]) -> dict[str, Any]:
    """What was done, JSON-able."""
    return {"deployment": deployment, "changes": [asdict(change) for change in done], "notes": notes}


def _render(found: dict[str, Any]) -> str:
    return "\n".join([*(str(changes.Change(**change)) for change in found["changes"]), *found["notes"]])
