"""The automations that deployments have on a Prefect server, and which deployments need them.

Two, for all runs or for a team's. One sends on the events of runs, of what only the run itself knows: a rollback, a
checkpoint that a gate rejected, a disk that is nearly full. One tells that nothing is heard any more of a reconciler.
States of flow runs, the next flow run and pages about dead runs follow from the stores (`tasks.reconciling`), and from
no event of Prefect's: those get lost, or come in another order. Invariant: an automation is known by its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from prefect.automations import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.events.actions import SendNotification

from tasks.prefect_bridge.alerts import EVENTS, RECONCILER, RECONCILER_ALIVE
from tasks.prefect_bridge.run_deployments import TAG

RECONCILER_SILENT_SECONDS = 300


@dataclass(frozen=True)
class Wanted:
    """An automation, and the tags of the deployments that need it.

    Where it is choosable, of which events it tells is a person's choice.
    """

    automation: AutomationCore
    tags: tuple[str, ...]
    is_choosable: bool = False

    @property
    def name(self) -> str:
        return self.automation.name


def make_automations(blocks: Sequence[UUID], team: str | None) -> list[Wanted]:
    """Those that send what the team has to know by each of the notification `blocks`; where it is None, of all runs."""
    tags = (TAG,) if team is None else (TAG, team)
    return [
        Wanted(tell_of_events(blocks, team), tags, is_choosable=True),
        Wanted(tell_of_silent_reconciler(blocks, team), tags),
    ]


def superfluous_names(team: str | None) -> list[str]:
    """Those that earlier versions made for all deployments and for the team: what they did the reconciler does."""
    of_all = [_named(what, None) for what in ("crash-silent-flow-runs", "start-the-next-flow-run", "crashes")]
    return of_all if team is None else [*of_all, _named("crashes", team)]


def tell_of_events(blocks: Sequence[UUID], team: str | None) -> AutomationCore:
    """A message for each event that somebody has to know of. What each means and what to do: deployments/runbook.md."""
    return AutomationCore(
        name=_named("alerts", team),
        description=f"{team or 'Somebody'} is told of what happens to runs.",
        trigger=EventTrigger(
            match=_resource("holdfast.*"), match_related=[] if team is None else [_tag(team)], expect=set(EVENTS)
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ event.event }}: run {{ event.payload.run }}",
                body="{{ event.payload.message }}\n\n{{ event.resource.name }}",
            )
            for block in blocks
        ],
    )


def tell_of_silent_reconciler(blocks: Sequence[UUID], team: str | None) -> AutomationCore:
    """Who tells people of all else has nobody else who would tell of its own end. Once after its last sign of life."""
    name = team or TAG
    minutes = RECONCILER_SILENT_SECONDS // 60
    return AutomationCore(
        name=_named("reconciler", team),
        description=f"{team or 'Somebody'} is told that no `holdfast reconcile` gives a sign of life any more.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=_resource(f"holdfast.{RECONCILER.format(name=name)}"),
            for_each={"prefect.resource.id"},
            after={RECONCILER_ALIVE},
            expect={RECONCILER_ALIVE},
            within=timedelta(seconds=RECONCILER_SILENT_SECONDS),
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject=f"[critical] reconciler-silent: {name}",
                body=f"No `holdfast reconcile` that tells {name} has given a sign of life for {minutes} minutes. "
                "Training goes on, and nobody is told of what happens to runs. Start it again: deployments/runbook.md, "
                "section Pages: reconciler-silent",
            )
            for block in blocks
        ],
    )


def _named(what: str, team: str | None) -> str:
    return f"{TAG}-{what}" if team is None else f"{TAG}-{what}-{team}"


def _resource(name: str) -> ResourceSpecification:
    return ResourceSpecification({"prefect.resource.id": name})


def _tag(tag: str) -> ResourceSpecification:
    return ResourceSpecification({"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"})
