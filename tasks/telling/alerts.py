"""What somebody should be told of who is not looking: an event on Prefect's server, beside the warning for who is.

A Prefect automation turns such an event into a message, a page or a flow run. Invariant: an alert never stops nor slows
who raises it. The event is handed to Prefect's own thread, which tries the server by itself; without a server the
warning is all there is.
"""

from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL

from tasks.telling.announce import warn

ROT = "holdfast.rot"
SAVE_FAILED = "holdfast.save-failed"
AUDIT_VIOLATION = "holdfast.audit-violation"
# A server refuses an event of more than 1.5 MB, and nobody reads that much.
MAX_MESSAGE_CHARACTERS = 20_000


def alert(name: str, resource: str, message: str, **payload: str | int | float | bool | None) -> None:
    """Warn of `message`, and send the event `name` about `resource`, which is the address of a thing in a store.

    The event's resource is `holdfast.<resource>`; its payload is `payload` and the message.
    """
    warn(message)
    if PREFECT_API_URL.value() is None:
        return  # Prefect would start a server of its own to tell it, and nobody would look there
    emit_event(
        event=name,
        resource={"prefect.resource.id": f"holdfast.{resource}", "prefect.resource.name": resource},
        payload={"message": message[:MAX_MESSAGE_CHARACTERS], **payload},
    )
