"""A store whose n-th operation is never made: what a kill at that very moment leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            self.num_calls += not self.only or name == self.only
            if self.num_calls == self.at:
                raise self.error
            return getattr(self.store, name)(*arguments, **named)

        return operation
