"""What the processes of a segment's nodes ask each other, and a node's ranks its own one: a line of JSON, and another.

It carries no decision: that is what the store has. Who is told to look looks there; who answers lives; and where the
members of a view meet, nobody but them needs to know. Invariant: nothing that comes is unpickled, or longer than a
line, and whoever asks about another segment gets no answer. Loads no torch.
"""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.meeting import Address, Meeting

MOST_LINE_BYTES = 1024
ANSWER_SECONDS = 1.0
WAITING_CONNECTIONS = 512

Asks = Literal["look", "here", "meeting", "leaving", "left"]


class Question(BaseModel):
    """Of a segment, by its name, and a view of it.

    look: this view may be committed, or should be. here: whether somebody answers. meeting: on which port the members
    of the view meet. leaving: the node that says it was asked to leave. left: the one that has left in good order. Both
    with the claim with which the node came.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment: str
    asks: Asks
    view: int = 0
    node: int = -1
    claim: int = 0


class Answer(BaseModel):
    """Of a node's process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int | None = None
    is_deciding: bool = Field(False, description="Whether it may yet say who goes on.")
    is_hopeless: bool = Field(False, description="Whether nobody goes on: too many are gone.")


def ask(address: Address, question: Question, seconds: float = ANSWER_SECONDS) -> Answer:
    """The answer of the process that listens there.

    Raises `OSError`: `ConnectionRefusedError` where none listens any more, `TimeoutError` where none answers.
    """
    with socket.create_connection((address.host, address.port), seconds) as connection:
        connection.sendall(write_line(question.model_dump()))
        said = read_line(connection)
    try:
        return Answer.model_validate(said)
    except ValidationError as error:
        raise ConnectionResetError(f"{address.host}:{address.port} said nothing that is an answer") from error


def tell(meeting: Meeting, asks: Asks, view: int = 0) -> Answer | None:
    """The answer of this node's own process; None where there is none."""
    with suppress(OSError):
        if meeting.ear is not None:
            return ask(meeting.ear, Question(segment=meeting.segment, asks=asks, view=view))
    return None


class Ear:
    """Answers what is asked at a port of this process, in threads, until it is closed."""

    def __init__(self, segment: str, answer: Callable[[Question], Answer]) -> None:
        self._segment, self._answer = segment, answer
        self._listening = socket.create_server(("", 0), backlog=WAITING_CONNECTIONS)
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._listen, name="ear", daemon=True).start()

    def close(self) -> None:
        """From here on whoever asks is refused."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # or the thread that accepts would keep it
        self._listening.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._hear, args=(connection,), name="ear", daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValidationError):
            connection.settimeout(ANSWER_SECONDS)
            question = Question.model_validate(read_line(connection))
            if question.segment == self._segment:
                connection.sendall(write_line(self._answer(question).model_dump()))


def write_line(said: dict[str, Any]) -> bytes:
    """What `read_line` reads."""
    return json.dumps(said).encode() + b"\n"


def read_line(connection: socket.socket, most_bytes: int = MOST_LINE_BYTES) -> dict[str, Any] | None:
    """What the other side says in a line; None if that is none of ours. Raises `TimeoutError` where it says nothing."""
    data = b""
    while not data.endswith(b"\n") and len(data) < most_bytes:
        try:
            part = connection.recv(most_bytes)
        except TimeoutError:
            if data:
                return None
            raise
        except OSError:
            return None
        if not part:
            return None
        data += part
    try:
        said = json.loads(data)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
