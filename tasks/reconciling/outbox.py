"""Messages on their way to people, by each of the notification blocks.

Invariant: to each block messages go in their order, and one that a block does not take is tried again, as long as it is
among the last ones. What is sent is printed as well, so that a process without a block still says it.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tasks.console.announce import announce, warn

MOST_WAITING = 100


class Notifier(Protocol):
    """One way to reach people."""

    @property
    def name(self) -> str:
        """For people, without an address."""

    def send(self, subject: str, body: str) -> str | None:
        """Send it; why it was not taken, in words that have no secret, or None if it was."""


@dataclass(eq=False)
class Message:
    """What one person is told once. `is_taken`: at least one block has taken it, or there is none."""

    subject: str
    body: str
    is_taken: bool = field(default=False, init=False)


class Outbox:
    """Several threads put messages; one sends them."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        self._waiting: list[tuple[Notifier, deque[Message]]] = [
            (notifier, deque(maxlen=MOST_WAITING)) for notifier in notifiers
        ]
        self._lock = threading.Lock()
        self._failed: dict[str, str] = {}

    def put(self, message: Message) -> None:
        """Have it sent, soon."""
        announce(f"{message.subject}. {message.body}")
        with self._lock:
            message.is_taken = not self._waiting
            for _, waiting in self._waiting:
                waiting.append(message)

    def send_all(self) -> None:
        """Send what waits. A block that fails is tried again at the next call, and delays no other."""
        for notifier, waiting in self._waiting:
            while waiting:
                message = waiting[0]
                why = notifier.send(message.subject, message.body)
                if why is not None:
                    self._tell_of_failure(notifier.name, why)
                    break
                self._failed.pop(notifier.name, None)
                message.is_taken = True
                with self._lock:  # of many that wait, this one may have been dropped meanwhile
                    if waiting and waiting[0] is message:
                        waiting.popleft()

    def _tell_of_failure(self, name: str, why: str) -> None:
        if self._failed.get(name) != why:
            self._failed[name] = why
            warn(f"The notification block {name} did not take a message, which is tried again: {why}")
