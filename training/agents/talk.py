"""What a supervisor and its agent say to each other: an order, that it was taken, that its ranks have all ended.

Invariant: a message is one JSON text in one packet, so it comes whole or not at all; and each hears when the other one
is gone, however that ended, since the kernel closes its socket.
"""

import json
import socket
from enum import StrEnum
from typing import Self

MOST_BYTES = 1 << 16


class Answer(StrEnum):
    """What an agent says of an order."""

    TAKEN = "taken"
    ENDED = "ended"


class Talk:
    """One end of the line between the two."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Both ends. No other process inherits them, unless they are passed on."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def passed_on(cls, descriptor: int) -> Self:
        """The end that this process was begun with; what it begins does not inherit it."""
        own = socket.socket(fileno=descriptor)
        own.set_inheritable(False)
        return cls(own)

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def say(self, text: str) -> None:
        """Raises `OSError` if the other one is gone."""
        self._socket.settimeout(None)
        self._socket.send(json.dumps(text).encode())

    def hear(self, seconds: float) -> str | None:
        """The next message, or None if none comes in this time. Raises `EOFError` if the other one is gone."""
        self._socket.settimeout(seconds)
        try:
            packet = self._socket.recv(MOST_BYTES)
        except (TimeoutError, BlockingIOError):
            return None
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise EOFError
        text: str = json.loads(packet)
        return text

    def is_over(self) -> bool:
        """Whether the other one is gone. What it has said stays to be heard."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()
