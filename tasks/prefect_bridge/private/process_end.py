"""The end of a process that a worker of Prefect's began for a flow run of ours.

Prefect's event loops run in threads that it never ends, and their tasks refer to all that the flow run had in hand.
What is referred to when Python takes its modules apart stays, and DuckDB's binding then prints a page of what "leaked",
for each flow run, into the worker's log. A command of ours leaves before that; here the engine of Prefect's owns the
exit code. Invariant: the exit code and what is printed otherwise are as without this module.
"""

import atexit

from prefect._internal.concurrency import threads

USES = (
    "prefect._internal.concurrency.threads._run_sync_loop",
    "prefect._internal.concurrency.threads._global_loop",
)
# They have nothing left to do: what is to be sent was sent when Python joined its other threads, before.
SECONDS = 5.0


def end_loops_at_exit() -> None:
    """Have this process end Prefect's event loops, if it has some, before its modules are taken apart.

    Uses the two variables that hold them: the functions around them begin a loop where there is none, and none ends
    one. Without it a page about leaks is in a worker's log again.
    """
    atexit.register(_end_loops)


def _end_loops() -> None:
    # The first one may use the second one.
    for loop in (threads._run_sync_loop, threads._global_loop):
        if loop is not None and loop.thread.is_alive():
            loop.shutdown()
            loop.thread.join(SECONDS)
