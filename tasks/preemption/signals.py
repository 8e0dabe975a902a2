"""Work that must not be broken off in the middle, and requests to stop that come meanwhile.

Invariant: the work runs in a thread of its own, so the exception that a signal raises in the main thread never breaks a
commit. The work sees the request; when it has ended, the exception goes on to the caller that would have got it. No
signal handler is replaced: Prefect acknowledges a cancel only while its own handler for SIGTERM is installed, and
records a cancelled flow run as crashed otherwise. SIGUSR1 and SIGUSR2, which have no such owner, are in
`scheduler.py`.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

WAIT_SECONDS = 1.0
_Result = TypeVar("_Result")


class StopRequest:
    """Whether a stop was requested since the work began. Only ever added to, so no lock is needed."""

    def __init__(self) -> None:
        self.exceptions: list[BaseException] = []

    def make(self, error: BaseException) -> None:
        """Ask from any thread. What was asked first is raised when the work has ended, once it has."""
        self.exceptions.append(error)

    @property
    def first_signal_or_request(self) -> BaseException:
        """What to raise. A signal comes first: Prefect is at work to end the flow run that it sent it to."""
        return next((error for error in self.exceptions if not isinstance(error, Exception)), self.exceptions[0])

    @property
    def is_made(self) -> bool:
        return bool(self.exceptions)


def run_to_end(work: Callable[[StopRequest], _Result]) -> _Result:
    """What `work` returns. It is never interrupted, and should end soon once its `StopRequest` is made.

    If one was made its exception is raised afterwards, also when the work failed: a user who asked to stop does not
    want another attempt.
    """
    done = _Work(work)
    while not done.is_over:
        try:
            if not done.has_begun:  # a signal may come while the thread is being started, too
                threading.Thread(target=done.run, name="supervisor").start()
            done.wait()
        except BaseException as asked:
            if isinstance(asked, RuntimeError) and not done.has_begun:
                raise  # no thread can be started
            done.request.make(asked)
    if done.request.exceptions:
        raise done.request.first_signal_or_request
    if done.error is not None:
        raise done.error
    return done.results[0]


class _Work(Generic[_Result]):
    """`work`, done once however many threads run it, with the context variables by which Prefect knows its flow run.

    The thread is not joined: interrupted by an exception, `Thread.join` takes a thread for ended (Python 3.11).
    """

    def __init__(self, work: Callable[[StopRequest], _Result]) -> None:
        self.request = StopRequest()
        self.results: list[_Result] = []
        self.error: BaseException | None = None
        self.has_begun = self.is_over = False
        self._work = work
        self._context = copy_context()
        self._first, self._end = threading.Lock(), threading.Lock()
        self._end.acquire()

    def run(self) -> None:
        if not self._first.acquire(blocking=False):
            return
        self.has_begun = True
        try:
            self.results.append(self._context.run(self._work, self.request))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error
        self.is_over = True
        self._end.release()

    def wait(self) -> None:
        """Wait for a moment, or until it is over. An exception may come at any point: nothing is lost then."""
        self._end.acquire(timeout=WAIT_SECONDS)
