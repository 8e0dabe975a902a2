"""Watching the ranks while they work, whatever it is that they do.

Invariant: what they report is passed on in order; they are asked to leave when somebody asks to stop, and killed when
they hang.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.errors import StoreUnavailableError
from tasks.launching.job import Job
from tasks.launching.processes import POLL_SECONDS
from tasks.running.hang import HangWatch
from tasks.running.signals import StopRequest
from tasks.telling.announce import announce
from training.watching.reporter import Report


def supervise(job: Job, watch: HangWatch, request: StopRequest, on_report: Callable[[Report], None]) -> bool:
    """Follow launched ranks until the last one has ended; whether they hung and were killed."""
    told: str | None = None
    with _passing_on(request, job):
        while job.is_running(POLL_SECONDS):
            new = _hear(job, watch)
            wait = job.describe_wait()
            if wait is not None:
                told = _tell(wait, told)
                watch.heard(watch.last_step)  # who waits in a queue does not hang
            if not new and watch.is_hung():
                job.write_stacks()
                job.kill()
                return True
            for report in new:
                watch.heard(report.step)
                on_report(report)
    for report in _hear(job, watch):  # the last ones, which they wrote while they left
        on_report(report)
    return False


def _hear(job: Job, watch: HangWatch) -> list[Report]:
    """New reports. Of ranks elsewhere they come through the store: while that does not answer, nobody seems to hang."""
    try:
        return job.read_reports()
    except StoreUnavailableError:
        watch.heard(watch.last_step)
        return []


def _tell(wait: str, told: str | None) -> str:
    if wait != told:
        announce(f"{wait}.")
    return wait


@contextmanager
def _passing_on(request: StopRequest, job: Job) -> Iterator[None]:
    """Ask the ranks to leave as soon as somebody asks to stop, whatever the block is at: a promotion takes a while."""
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
