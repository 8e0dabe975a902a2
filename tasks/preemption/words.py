"""Messages about a notice.

Invariant: who announced what comes first, then what is left, then what follows.
"""

from tasks.preemption.notice import Notice
from tasks.text import duration

SAVING = "The ranks finish their step, save and leave."
ENDED = "The ranks have left already."
GOING_ON = "Training goes on."


def describe(notice: Notice, follows: str) -> str:
    """The message at once."""
    left = "" if notice.seconds_left is None else f" About {duration(notice.seconds_left)} are left."
    return f"{notice.words}.{left} {follows}"


def describe_stop(notice: Notice) -> str:
    """Why a command ends, and how the run goes on."""
    return (
        f"A notice ended this segment: {notice.words}. Start the same command again, where the machine stays: the run "
        "goes on from its last promoted checkpoint."
    )
