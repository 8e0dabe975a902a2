"""The process in which Great Expectations judges: it loads while others work, and what it takes is not kept for days.

Invariant: it answers one question after the other and keeps nothing of any. It ends with the process that started it,
or when that has no more need of it.
"""

import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock, Thread

from storage.errors import StoreError
from tasks.data.contract.judge import Columns, Judgement, Question, judge_here, load
from tasks.launching.processes import environment_of_installation

_lock = Lock()
_running: "_Process | None" = None


class _Process:
    """That process, and how to talk to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, "-m", "tasks.data.contract.judge_process", str(number), str(os.getpid())]
        environment = environment_of_installation()
        self.process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, env=environment)
        theirs.close()

    def close(self) -> None:
        """End it; returns when it is gone."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def load_judge() -> None:
    """Have Great Expectations loaded before it is needed. Returns at once."""
    with _lock:
        _find_or_start()


def dismiss_judge() -> None:
    """End the process, if there is one. Who asks again starts another."""
    with _lock:
        _forget()


def judge(batch: Columns, asked: Sequence[Question], index_column: str | None = None) -> Judgement:
    """What Great Expectations says of a batch, as `judge_here`.

    Raises `StoreError` if its process was killed, twice, and what it raised.
    """
    with _lock:
        answer = _ask(batch, asked, index_column) or _ask(batch, asked, index_column)
    if answer is None:
        raise StoreError(
            "The process in which Great Expectations looks at the data was killed, most likely because memory ran out. "
            "Run again with more memory: it takes a few hundred MB beside what data.memory_limit allows."
        )
    if isinstance(answer, str):
        raise RuntimeError(f"Great Expectations could not judge:\n{answer}")
    return answer


def _ask(batch: Columns, asked: Sequence[Question], index_column: str | None) -> Judgement | str | None:
    """Its answer, or the traceback of what it raised; None if it has ended."""
    connection = _find_or_start().connection
    try:
        connection.send((dict(batch), list(asked), index_column))
        answer: Judgement | str = connection.recv()
    except (EOFError, OSError):
        _forget()
        return None
    return answer


def _find_or_start() -> _Process:
    global _running
    if _running is None:
        _running = _Process()
    return _running


def _forget() -> None:
    global _running
    if _running is not None:
        _running.close()
        _running = None


def main() -> None:
    """Answer questions that come through the connection with this number, from the process with this id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started this
    connection = Connection(int(sys.argv[1]))
    Thread(target=_end_with, args=[int(sys.argv[2])], name="end-with-parent", daemon=True).start()
    load()
    try:
        while True:
            connection.send(_answer(*connection.recv()))
    except (EOFError, OSError):
        pass  # who asked has ended


def _answer(batch: Columns, asked: Sequence[Question], index_column: str | None) -> Judgement | str:
    try:
        return judge_here(batch, asked, index_column)
    except Exception:  # noqa: BLE001 - for whoever asked
        return traceback.format_exc()


def _end_with(parent: int) -> None:
    """To load takes seconds, in which nobody listens to the connection."""
    if os.getppid() == parent:
        select.select([os.pidfd_open(parent)], [], [])
    os._exit(1)


if __name__ == "__main__":
    main()
    os._exit(0)  # taking hundreds of modules apart would take a second
