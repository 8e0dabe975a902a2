"""Result of a step or a flow of ours, kept in memory for its caller.

Prefect gives the value of a state back, and a state that comes from its server has none: for instance when the server
had heard of the end before, because the client asked again after an answer that came too late. Invariant: what Prefect
returns decides nothing. The function records here how it ended, and its caller reads it here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from tasks.console.announce import warn

Value = TypeVar("Value")

_awaited: ContextVar["Returned[Any]"] = ContextVar("awaited")


class Returned(Generic[Value]):
    """How the last attempt of one call ended; nothing before it did."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._error: Exception | None = None

    @property
    def is_known(self) -> bool:
        return self.has_value or self._error is not None

    @property
    def has_value(self) -> bool:
        return bool(self._values)

    def note(self, value: Value) -> None:
        self._values, self._error = [value], None

    def note_error(self, error: Exception) -> None:
        self._values, self._error = [], error

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Around an attempt: what an earlier one came to no longer counts, and what this one raises is noted."""
        self._values, self._error = [], None
        try:
            yield
        except Exception as error:
            self.note_error(error)
            raise

    def take(self) -> Value:
        """The value. Raises the error with which the call ended instead, and `RuntimeError` if it did not begin."""
        if self._error is not None:
            raise self._error
        if not self.has_value:
            raise RuntimeError("Prefect returned from a call that it did not make.")
        return self._values[0]


def call_through_prefect(call: Callable[[], object]) -> Returned[Any]:
    """How the function behind `call`, a flow or a task of ours, ended. Raises what kept Prefect from calling it.

    What Prefect fails to send to its server afterwards does not change how it ended.
    """
    returned: Returned[Any] = Returned()
    token = _awaited.set(returned)
    try:
        call()
    except Exception as error:
        if not returned.is_known:
            raise
        if returned.has_value:
            warn(f"Prefect's server did not get how this ended: {error}")
    finally:
        _awaited.reset(token)
    return returned


def current_call() -> Returned[Any]:
    """Where the function that Prefect has just called records its end; asked for before it calls anything itself."""
    return _awaited.get(None) or Returned()
