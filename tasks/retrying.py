"""Operations on a store, or a cluster, that for a while does not answer or refuses: made again as configured.

Each request to a store is made again by the store itself, for seconds. This is the only module where a
whole operation is (settling a segment, an evaluation, a report), for minutes. Invariant: whatever is given to it may be
made twice, also when the first time took place and only its answer was lost.
"""

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from storage.backoff import Backoff
from storage.errors import ClusterUnavailableError, StoreUnavailableError
from tasks.configuration.run import RetryConfig
from tasks.console.announce import warn

BACKOFF = Backoff(first_seconds=1.0, limit_seconds=60.0)
POLL_SECONDS = 0.2

_Result = TypeVar("_Result")


class Retry:
    """Waits for a store or a cluster for `retry.store_seconds`, unless `is_asked_to_stop` returns true."""

    def __init__(self, retry: RetryConfig, is_asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._seconds = retry.store_seconds
        self._is_asked_to_stop = is_asked_to_stop

    def call(self, what: str, operation: Callable[[], _Result]) -> _Result:
        """What `operation` returns, made again while the store does not answer or refuses. `what` is for people.

        Raises the last `StoreUnavailableError` or `ClusterUnavailableError`, and everything else at once.
        """
        num_pauses = BACKOFF.count_pauses(self._seconds)
        deadline: float | None = None
        for number in itertools.count(1):
            try:
                return operation()
            except (StoreUnavailableError, ClusterUnavailableError) as error:
                deadline = deadline or time.monotonic() + self._seconds
                left = deadline - time.monotonic()
                if isinstance(error, StoreUnavailableError) and left <= 0:
                    error.was_waited_for, left = True, 0
                if left <= 0 or self._is_asked_to_stop() or getattr(error, "was_waited_for", False):
                    raise
                seconds = min(left, BACKOFF.draw_seconds(min(number, num_pauses)))
                of = max(number, num_pauses) + 1
                warn(f"{what}: attempt {number} of {of} failed, again in {seconds:.1f} s. {error}")
                self.pause(seconds)
        raise AssertionError("counted without end")

    def pause(self, seconds: float) -> None:
        """Wait, but not for longer than until a request to stop."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._is_asked_to_stop():
            time.sleep(min(left, POLL_SECONDS))  # a request to stop is only polled, and wakes no thread
