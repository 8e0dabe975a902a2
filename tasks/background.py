"""Work beside a block: signs of life, a look at the store now and then, pages that are drawn.

Invariant: it begins with the block, goes on until the block is left, whatever fails in it, and has ended then; the
block never waits for it before that.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from contextvars import copy_context
from types import TracebackType
from typing import Self

# Less than the silence after which a process is taken for dead.
BEGIN_AGAIN_SECONDS = 5.0
LOG_AGAIN_SECONDS = 600.0

_logger = logging.getLogger("holdfast")


class BackgroundThread(ABC):
    """A context manager. `_accompany` runs in the thread, until it returns; it should soon after `_is_over` is set.

    It handles the errors that it knows. Any other is logged as a warning, and `_accompany` begins again.
    """

    def __init__(self, name: str) -> None:
        self._is_over = threading.Event()
        self._logged_at: dict[str, float] = {}
        context = copy_context()  # by which Prefect knows the flow run
        self._thread = threading.Thread(target=lambda: context.run(self._work), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                self._accompany()
                return
            except Exception as error:  # noqa: BLE001 - if the thread ended, that would be noticed too late
                self._log(error)
            if self._is_over.wait(BEGIN_AGAIN_SECONDS):
                return

    def _log(self, error: Exception) -> None:
        """Log an error at once, and the same one again after `LOG_AGAIN_SECONDS`."""
        words, now = f"{type(error).__name__}: {error}", time.monotonic()
        if now - self._logged_at.get(words, -LOG_AGAIN_SECONDS) >= LOG_AGAIN_SECONDS:
            self._logged_at[words] = now
            _logger.warning(
                "What goes on beside the ranks (%s) failed, and is tried again every %.0f s; training goes on. %s",
                self._thread.name,
                BEGIN_AGAIN_SECONDS,
                words,
            )

    @abstractmethod
    def _accompany(self) -> None:
        """The work, in the thread."""
