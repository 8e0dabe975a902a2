"""Work beside a block: signs of life, a look at the store now and then, pages that are drawn.

Invariant: it begins with the block, and has ended when the block is left; whoever is in the block never waits for it
before that.
"""

import threading
from abc import ABC, abstractmethod
from contextvars import copy_context
from types import TracebackType
from typing import Self


class Companion(ABC):
    """A context manager. `_accompany` runs in the thread, until it returns; it should soon after `_is_over` is set."""

    def __init__(self, name: str) -> None:
        self._is_over = threading.Event()
        context = copy_context()  # by which Prefect knows the flow run
        self._thread = threading.Thread(target=lambda: context.run(self._accompany), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @abstractmethod
    def _accompany(self) -> None:
        """The work, in the thread."""
