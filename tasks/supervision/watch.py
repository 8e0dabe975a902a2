"""Watching the ranks while they work, whatever it is that they do.

Invariant: what they report is passed on in order; they are asked to leave when a stop is requested, and killed when
they hang.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from storage.errors import StoreUnavailableError
from tasks.cluster.job import Job
from tasks.cluster.processes import POLL_SECONDS
from tasks.console.announce import announce, warn
from tasks.preemption.signals import StopRequest
from tasks.supervision.hang import HangWatch
from tasks.supervision.stragglers import Stragglers
from training.metrics.reporter import Report


def supervise(job: Job, watch: HangWatch, request: StopRequest, on_report: Callable[[Report], None]) -> bool:
    """Follow launched ranks until the last one has ended; whether they hung and were killed."""
    logged, stragglers = None, Stragglers()
    with _passing_on(request, job):
        while job.is_running(POLL_SECONDS):
            new = _hear(job, watch)
            wait = job.describe_wait()
            if wait is not None:
                logged = _log_wait(wait, logged)
                watch.cannot_hear()  # who waits in a queue does not hang
            if not new and _do_hang(job, watch):
                job.write_stacks()
                job.kill()
                return True
            for report in new:
                watch.heard(report)
                on_report(report)
            _warn_of_stragglers(job, stragglers)
            _grow(job)
    for report in _hear(job, watch):  # the last ones, which they wrote while they left
        on_report(report)
    return False


def _hear(job: Job, watch: HangWatch) -> list[Report]:
    """New reports. Of ranks elsewhere they come through the store: while that does not answer, no rank hangs."""
    try:
        return job.read_reports()
    except StoreUnavailableError:
        watch.cannot_hear()
        return []


def _do_hang(job: Job, watch: HangWatch) -> bool:
    if watch.wants_statuses():
        try:
            watch.look(job.read_rank_statuses())
        except StoreUnavailableError:
            watch.cannot_hear()
    return watch.is_hung()


def _warn_of_stragglers(job: Job, stragglers: Stragglers) -> None:
    if not stragglers.is_due():
        return
    with suppress(StoreUnavailableError):
        for remark in stragglers.look(job.read_rank_statuses()):
            warn(remark)


def _grow(job: Job) -> None:
    growth = job.describe_growth()
    if growth is not None:
        announce(growth)
        job.stop()


def _log_wait(wait: str, logged: str | None) -> str:
    if wait != logged:
        announce(f"{wait}.")
    return wait


@contextmanager
def _passing_on(request: StopRequest, job: Job) -> Iterator[None]:
    """Ask the ranks to leave as soon as a stop is requested, whatever the block is at: a promotion takes a while."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_SECONDS):
            if request.is_made:
                job.stop()
                return

    watching = threading.Thread(target=watch, name="stop-request", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
