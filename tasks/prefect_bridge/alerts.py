"""Alerts for people who are not looking: an event on Prefect's server, beside the warning in the log.

A Prefect automation turns such an event into a message. Invariant: an alert never stops nor slows who raises it. The
event is handed to Prefect's own thread, which tries the server by itself; without a server the warning is all there is.
"""

from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL

from tasks.console.announce import warn

AUDIT_VIOLATION = "holdfast.audit-violation"
FALLBACK = "holdfast.fallback"
GATE_REJECTED = "holdfast.gate-rejected"
LOW_DISK = "holdfast.low-disk"
NO_PROGRESS = "holdfast.no-progress"
PASSED_OVER = "holdfast.passed-over"
ROLLBACK = "holdfast.rollback"
ROT = "holdfast.rot"
RUN_ENDED = "holdfast.run-ended"
SAVE_FAILED = "holdfast.save-failed"
SEGMENT_LOST = "holdfast.segment-lost"
# All that `holdfast deploy` has sent on, and that deployments/runbook.md explains.
EVENTS = (
    AUDIT_VIOLATION, FALLBACK, GATE_REJECTED, LOW_DISK, NO_PROGRESS, PASSED_OVER, ROLLBACK, ROT, RUN_ENDED, SAVE_FAILED,
    SEGMENT_LOST,
)  # fmt: skip
# The sign of life of a process that reconciles, and of what: with the name of the blocks by which it tells people.
RECONCILER_ALIVE = "holdfast.reconciler-alive"
RECONCILER = "reconciler.{name}"
# A server refuses an event of more than 1.5 MB, and no person reads that much.
MAX_MESSAGE_CHARACTERS = 20_000

Payload = str | int | float | bool | None


def alert(name: str, resource: str, message: str, **payload: Payload) -> None:
    """Warn of `message`, and send the event `name` about `resource`, which is the address of a thing in a store.

    The event's resource is `holdfast.<resource>`; its payload is `payload` and the message.
    """
    warn(message)
    send(name, resource, message, **payload)


def send(name: str, resource: str, message: str, **payload: Payload) -> None:
    """The event alone, of what is shown on the terminal and in the flow run's final state anyway."""
    if PREFECT_API_URL.value() is None:
        return  # Prefect would start a server of its own for it, which no person looks at
    emit_event(
        event=name,
        resource={"prefect.resource.id": f"holdfast.{resource}", "prefect.resource.name": resource},
        payload={"message": message[:MAX_MESSAGE_CHARACTERS], **payload},
    )
