"""Looking for notices while a segment or an evaluation is under way, and asking it to stop when one comes.

Invariant: looking takes place in threads of its own, one for each source, so that one that does not answer delays
neither the ranks nor another source; and nothing is waited for when the work has ended.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from storage.errors import RunStoppedError
from tasks.configuration.notices import NoticesConfig
from tasks.preemption.notice import NoticeSource
from tasks.preemption.scheduler import SchedulerSignals
from tasks.preemption.signals import StopRequest, run_to_end
from tasks.preemption.sources import open_sources
from tasks.preemption.words import ENDED, GOING_ON, SAVING, describe, describe_stop
from tasks.text import shortened

LOOK_SECONDS = 2.0
# What is announced further ahead is logged, and obeyed when it comes near: Azure may announce days ahead.
NEAR_SECONDS = 300.0
LATER = f"Training goes on until {NEAR_SECONDS / 60:.0f} minutes are left."
SILENT = (
    f"It is asked again every {LOOK_SECONDS:.0f} s. Until it answers, the end of this machine is not seen there. "
    "Training goes on."
)
MAX_QUOTED_CHARACTERS = 200
Warn = Callable[[str], None]
_Result = TypeVar("_Result")


def run_to_end_or_notice(config: NoticesConfig, warn: Warn, work: Callable[[StopRequest], _Result]) -> _Result:
    """As `run_to_end`; a notice asks to stop, too, and is a `RunStoppedError` then. What comes is logged by `warn`."""
    signals = SchedulerSignals()

    def watched(request: StopRequest) -> _Result:
        with watching([signals, *open_sources(config)], request, warn):
            return work(request)

    with signals.heard():
        result = run_to_end(watched)
    late = signals.look()
    if late is not None:  # it came after the last look
        warn(describe(late, ENDED))
        raise RunStoppedError(describe_stop(late))
    return result


@contextmanager
def watching(sources: list[NoticeSource], request: StopRequest, warn: Warn) -> Iterator[None]:
    """Look at all sources, at once and every two seconds, for as long as the block lasts."""
    is_over = threading.Event()
    for source in sources:
        watch = _Watch(source, request, warn, is_over)
        # In the context by which a warning finds its flow run.
        threading.Thread(target=copy_context().run, args=(watch.follow,), name=source.name, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class _Watch:
    """One source, followed until it announces the end or the work has ended."""

    def __init__(self, source: NoticeSource, request: StopRequest, warn: Warn, is_over: threading.Event) -> None:
        self._source = source
        self._request = request
        self._warn = warn
        self._is_over = is_over
        self._logged: set[str] = set()

    def follow(self) -> None:
        while not self._is_over.is_set() and not self._was_asked_to_stop():
            self._is_over.wait(LOOK_SECONDS)

    def _was_asked_to_stop(self) -> bool:
        """Look once, and do what follows. What a look brings when the work has ended does not matter any more."""
        try:
            notice = self._source.look()
        except (OSError, ValueError) as error:
            self._warn_of_silence(error)
            return False
        if notice is None or self._is_over.is_set():
            return False
        if notice.ends_machine and (notice.seconds_left is None or notice.seconds_left <= NEAR_SECONDS):
            self._request.make(RunStoppedError(describe_stop(notice)))  # first: seconds count
            self._warn(describe(notice, SAVING))
            return True
        if notice.words not in self._logged:
            self._logged.add(notice.words)
            self._warn(describe(notice, LATER if notice.ends_machine else GOING_ON))
        return False

    def _warn_of_silence(self, error: Exception) -> None:
        if SILENT in self._logged or self._is_over.is_set():
            return
        self._logged.add(SILENT)
        self._warn(f"{self._source.name} cannot be read: {shortened(error, MAX_QUOTED_CHARACTERS)}. {SILENT}")
