"""Stores that are cut off: at an operation that is never made, as by a kill, or before its answer comes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore


class ProcessGoneError(Exception):
    """Stands for a kill: nothing in the program catches it."""


@dataclass(eq=False)
class StoreCutOff:
    """A store whose n-th operation is never made; with `only`, the n-th of this name."""

    store: LocalStore
    at: int
    error: Exception
    only: str = ""
    num_calls: int = 0

    @property
    def address(self) -> str:
        return self.store.address

    @property
    def page_keys(self) -> int | None:
        return self.store.page_keys

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            self.num_calls += not self.only or name == self.only
            if self.num_calls == self.at:
                raise self.error
            return getattr(self.store, name)(*arguments, **named)

        return operation


WRITES = ("write", "write_if_absent", "put_file", "replace_file", "delete")


@dataclass(eq=False)
class StoreLosingAnswers:
    """A store that does what its n-th write asks for, and whose answer to that is lost."""

    store: LocalStore
    at: int
    num_writes: int = 0

    @property
    def address(self) -> str:
        return self.store.address

    @property
    def page_keys(self) -> int | None:
        return self.store.page_keys

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            result = getattr(self.store, name)(*arguments, **named)
            self.num_writes += name in WRITES
            if name in WRITES and self.num_writes == self.at:
                raise StoreUnavailableError("The store took the write and does not answer.")
            return result

        return operation
