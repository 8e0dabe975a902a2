"""Where the members of a view meet: in a file on one machine, and over several at a port that its first member opens.

Invariant: a view has one meeting, under its own number; what its members exchange there decides for them alone whether
they form its group. The port is known to the first member's node alone, which is asked for it.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist

from training.meeting import Address, Meeting
from training.views.ear import Question, ask
from training.views.folder import ViewFolder
from training.views.group import FORMING_TIMEOUT
from training.views.view import View

NO_PORT = 0


class Waits(Protocol):
    """Asks again and again until there is an answer, or the wait is given up: then it returns None."""

    def __call__(self, find: Callable[[], int | None], /) -> int | None: ...


def open_meeting(
    view: View, rank: int, folder: ViewFolder, meeting: Meeting, opened: set[Address], wait_for: Waits
) -> Any:
    """The store in which the members of a view meet, for the one that is `rank` there; its port is put into `opened`.

    None if there is a newer view before the first member has opened it, or the wait for that is given up. Raises
    `RuntimeError` where it cannot be reached, as when the first member is gone.
    """
    if view.meeting is None:
        files = dist.FileStore(str(folder.meeting_file(view.number)), len(view.members))  # type: ignore[attr-defined]
        files.set_timeout(FORMING_TIMEOUT)
        return files
    if rank == 0:
        # At the one address that the others have, and not on all interfaces.
        listening = socket.create_server((view.meeting.host, 0), backlog=len(view.members))
        found = Address(host=view.meeting.host, port=listening.getsockname()[1])
        opened.add(found)
        store = _open(found, len(view.members), listening.detach())
        folder.say_port(view.number, found.port)
        return store
    port = wait_for(partial(_find_port, view, view.meeting, folder, meeting.segment))
    if not port:
        return None
    found = Address(host=view.meeting.host, port=port)
    opened.add(found)
    return _open(found, len(view.members))


def _open(address: Address, size: int, listening: int | None = None) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        address.host,
        address.port,
        size,
        is_master=listening is not None,
        timeout=FORMING_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listening,
    )


def _find_port(view: View, first: Address, folder: ViewFolder, segment: str) -> int | None:
    """As the first member's node says; None: that member has not come. `NO_PORT`: it need not, for a newer view."""
    if folder.has(view.number + 1):
        return NO_PORT
    with suppress(OSError):  # if its node is gone, there will be a newer view
        return ask(first, Question(segment=segment, asks="meeting", view=view.number)).port
    return None
