"""The automations that deployments have on a Prefect server, and which deployments need them.

Two keep the states of flow runs true and the work going, for all. Three tell people: two of all runs, or of a team's,
and one that nothing is heard any more of a reconciler. They are the same however a deployment was made. Invariant: an
automation is known by its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from prefect.automations import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification

from flows.scheduled import scheduled
from tasks.prefect_bridge.alerts import EVENTS, RECONCILER, RECONCILER_ALIVE
from tasks.prefect_bridge.flow_runs import SKIPPED
from tasks.prefect_bridge.run_deployments import TAG

FLOW_RUN = "prefect.flow-run"
CRASHED = f"{FLOW_RUN}.Crashed"
HEARTBEAT = f"{FLOW_RUN}.heartbeat"
HEARTBEAT_SECONDS = 30
SILENT_SECONDS = 90
RECONCILER_SILENT_SECONDS = 300
# So that a flow run that crashes each time, at once, does not keep the worker busy.
NEXT_AFTER_SECONDS = 15
FINAL_STATES = ("Completed", SKIPPED, "Failed", "Cancelled", "Crashed")
# They send no heartbeat either, and nobody has to be woken for them.
RESTING_STATES = ("Suspended", "Paused", "AwaitingRetry")


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
    """Those of all deployments, and those that send what the team has to know by each of the notification `blocks`.

    Where `team` is None, of all runs.
    """
    tags = (TAG,) if team is None else (TAG, team)
    return [
        Wanted(call_silent_crashed(), (TAG,)),
        Wanted(start_next(), (TAG,)),
        Wanted(tell_of_events(blocks, team), tags, is_choosable=True),
        Wanted(tell_of_crashes(blocks, team), tags),
        Wanted(tell_of_silent_reconciler(blocks, team), tags),
    ]


def call_silent_crashed() -> AutomationCore:
    """The flow runs of a machine that was killed would be shown as `Running` for ever."""
    return AutomationCore(
        name=f"{TAG}-crash-silent-flow-runs",
        description="A flow run whose machine or process was killed is shown as crashed.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=_resource(f"{FLOW_RUN}.*"),
            match_related=_tag(TAG),
            for_each={"prefect.resource.id"},
            after={HEARTBEAT},
            expect={HEARTBEAT, *(f"{FLOW_RUN}.{state}" for state in (*FINAL_STATES, *RESTING_STATES))},
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"Not heard of for {SILENT_SECONDS} s. The next flow run goes on from the promoted checkpoint.",
            )
        ],
    )


def start_next() -> AutomationCore:
    """The next flow run need not wait for the schedule. Training does not depend on it."""
    of_flow = {"prefect.resource.role": "flow", "prefect.resource.name": scheduled.name}
    return AutomationCore(
        name=f"{TAG}-start-the-next-flow-run",
        description="After a flow run of a deployed train crashed, the next one begins, with the parameters of the "
        "schedule.",
        trigger=EventTrigger(
            match=_resource(f"{FLOW_RUN}.*"),
            match_related=[_tag(TAG), ResourceSpecification(of_flow)],  # both: `train` below it has the tag too
            expect={CRASHED},
        ),
        actions=[RunDeployment(source="inferred", schedule_after=timedelta(seconds=NEXT_AFTER_SECONDS))],
    )


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


def tell_of_crashes(blocks: Sequence[UUID], team: str | None) -> AutomationCore:
    """Who dies with the machine tells nobody, and a lost segment is told by whoever takes the run up next."""
    return AutomationCore(
        name=_named("crashes", team),
        description=f"{team or 'Somebody'} is told of a flow run that was killed, or is not heard of.",
        trigger=EventTrigger(
            match=_resource(f"{FLOW_RUN}.*"),
            match_related=[_tag(TAG), *([] if team is None else [_tag(team)])],
            expect={CRASHED},
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ event.event }}: {{ event.resource.name }}",
                body=f"The flow run was killed, or not heard of for {SILENT_SECONDS} s. The next one goes on from the "
                "promoted checkpoint.",
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
