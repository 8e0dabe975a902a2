"""Watching the ranks while they work, whatever it is that they do.

Invariant: what they report is passed on in order; they are asked to leave when somebody asks to stop, and killed when
they hang.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks.running.following import ReportFollower
from tasks.running.hang import HangWatch
from tasks.running.ranks import POLL_SECONDS, Ranks
from tasks.running.signals import StopRequest
from training.specification import SegmentSpec
from training.watching.reporter import Report


def supervise(
    ranks: Ranks, spec: SegmentSpec, watch: HangWatch, request: StopRequest, on_report: Callable[[Report], None]
) -> bool:
    """Follow launched ranks until the last one has ended; whether they hung and were killed."""
    reports = ReportFollower(spec.progress_file)
    with _passing_on(request, ranks):
        while ranks.is_running(POLL_SECONDS):
            new = reports.read()
            if not new and watch.is_hung():
                ranks.kill()
                return True
            for report in new:
                watch.heard(report.step)
                on_report(report)
    for report in reports.read():  # the last ones, which they wrote while they left
        on_report(report)
    return False


@contextmanager
def _passing_on(request: StopRequest, ranks: Ranks) -> Iterator[None]:
    """Ask the ranks to leave as soon as somebody asks to stop, whatever the block is at: a promotion takes a while."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_SECONDS):
            if request.is_made:
                ranks.stop()
                return

    watching = threading.Thread(target=watch, name="stop-request", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
