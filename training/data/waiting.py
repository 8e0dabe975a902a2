"""What a store does not give just now is waited for, as the supervisor of the ranks waits for it too.

That is samples, the data set that they are of, and the weights that a run begins with.

Invariant: no wait goes on after a request to stop. What is read is the same however long it takes.
"""

import itertools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from storage.backoff import Backoff
from storage.datasets import MANIFEST_NAME, DatasetManifest, dataset_key, load_dataset
from storage.errors import StoreUnavailableError
from storage.objects.readable import reading
from storage.objects.store import Store
from training.spec import SegmentSpec
from training.stopping import StopFlag, StopReason

BACKOFF = Backoff(first_seconds=1.0, limit_seconds=20.0)
POLL_SECONDS = 0.2

_logger = logging.getLogger("holdfast")
_Result = TypeVar("_Result")


def load_dataset_patiently(spec: SegmentSpec, store: Store, wait: "StoreWait") -> DatasetManifest:
    """The data set of the run, which is in the store for certain: it was pinned before the ranks were launched."""

    def load() -> DatasetManifest:
        with reading(store, dataset_key(spec.dataset_digest, MANIFEST_NAME)):
            return load_dataset(store, spec.dataset_digest, spec.dataset_sha256)

    return wait.read("The files of the data set", load)


def wait_of(spec: SegmentSpec, flag: StopFlag, report: Callable[[str], None]) -> "StoreWait":
    """The wait of this segment: as long as the specification allows, until a stop is requested, with `report`."""
    return StoreWait(spec.store_seconds, lambda: flag.reason() > StopReason.BUDGET, report)


class StoreWait:
    """Waits for a store for `seconds`, unless `is_asked_to_stop` returns true. `report` gets messages for people."""

    def __init__(
        self,
        seconds: float = 0.0,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self._seconds = seconds
        self._is_asked_to_stop = is_asked_to_stop
        self._report = report

    def read(self, what: str, read: Callable[[], _Result]) -> _Result:
        """What `read` gives, made again while the store does not answer. Raises its last `StoreUnavailableError`."""
        began = time.monotonic()
        has_reported = False
        for number in itertools.count(1):
            try:
                found = read()
            except StoreUnavailableError as error:
                left = began + self._seconds - time.monotonic()
                if left <= 0 or self._is_asked_to_stop():
                    raise
                if not has_reported:
                    self._report(f"{what} cannot be read just now: waiting up to {self._seconds:.0f} s. {error}")
                    has_reported = True
                _logger.warning("%s cannot be read just now, %.0f s are left. %s", what, left, error)
                self._pause(min(left, BACKOFF.draw_seconds(number)))
            else:
                if has_reported:
                    self._report(f"{what} are read again, after {time.monotonic() - began:.0f} s.")
                return found
        raise AssertionError("counted without end")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._is_asked_to_stop():
            time.sleep(min(left, POLL_SECONDS))  # a request to stop is only looked at, and wakes no thread
