"""The group in which the ranks of a view talk, and how it is left when one of them is gone.

A Gloo group cannot be taken apart: that waits for threads which wait for the rank that is gone (`agents/rank.py`). So a
group that is left is kept, and its connections are shut down: whoever waits for something at the other end of one is
told. Invariant: a socket that listens is never shut down, since Gloo ends the process then.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from training.meeting import Address
from training.process_group import COLLECTIVE_TIMEOUT

# All members have come to the meeting before: what is left is some messages.
FORMING_TIMEOUT = timedelta(seconds=10)
POLL_SECONDS = 0.002


class Connections:
    """The connections of one group, by descriptors of our own: Gloo closes its own ones, and their numbers come again.

    What this process opens between `Connections()` and the last `find` counts as the group's, but for those at one of
    the addresses that are `left_alone`: of meetings, which a group outlives.
    """

    def __init__(self, left_alone: Collection[Address] = ()) -> None:
        self._left_alone = left_alone
        self._before = _sockets()
        self._found: list[socket.socket] = []

    def find(self) -> None:
        """Take note of them, once the group is there; of one that was given up also later, until there is another."""
        now = _sockets()
        new, self._before = now - self._before, self._before | now
        for descriptor in new:
            try:
                found = socket.socket(fileno=os.dup(descriptor))
            except OSError:
                continue  # closed meanwhile
            ends = _ends_of(found)
            if ends and not any(end in self._left_alone for end in ends):
                self._found.append(found)
            else:
                found.close()

    def shut_down(self) -> None:
        """Have nobody wait for what comes through them, here or at their other ends. From whichever thread."""
        while self._found:
            # The other end may be gone already, and another thread may take the last one.
            with suppress(OSError, IndexError), self._found.pop() as found:
                found.shutdown(socket.SHUT_RDWR)


def form_group(store: Any, number: int, rank: int, size: int, is_over: Callable[[], bool]) -> Any:
    """The group of a view, all of whose members form it now.

    None if one does not, or if it `is_over`: a member has died, for which Gloo would wait. The time that Gloo is given
    is that of each message later, too, whatever is set afterwards: how long forming may take is seen to here.
    """
    prefixed = dist.PrefixStore(f"view-{number}", store)  # type: ignore[attr-defined]
    formed: list[Any] = []

    def form() -> None:
        try:
            formed.append(dist.ProcessGroupGloo(prefixed, rank, size, COLLECTIVE_TIMEOUT))
        except RuntimeError as error:
            print(f"View {number} was not formed: {error}", flush=True)

    forming = threading.Thread(target=form, name="forming-view", daemon=True)
    forming.start()
    ends = time.monotonic() + FORMING_TIMEOUT.total_seconds()
    while forming.is_alive() and not is_over() and time.monotonic() < ends:
        forming.join(POLL_SECONDS)
    return formed[0] if formed else None


def _sockets() -> set[int]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor by which the folder itself was read
            if str(descriptor.readlink()).startswith("socket:"):
                found.add(int(descriptor.name))
    return found


def _ends_of(found: socket.socket) -> list[Address]:
    """Both ends of a connection; none of a socket that is not connected."""
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return []
    try:
        ends = found.getsockname(), found.getpeername()
    except OSError:
        return []
    return [Address(host=end[0], port=end[1]) for end in ends]
