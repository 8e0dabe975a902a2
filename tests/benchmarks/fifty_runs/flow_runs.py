"""Flow runs forked from a process that has their libraries: to load them takes each one seconds of a processor.

`python -m tests.benchmarks.fifty_runs.flow_runs DESCRIPTOR ROOM` listens at this socket. Of a forked flow run all is as
after `python -m prefect.engine`, with which a worker starts it, but for its agent, which is forked too, and whose ranks
are `reporting_ranks.py`.
"""

import os
import runpy
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.deploying.run_deployment import ENVIRONMENT
from tests.benchmarks.fifty_runs import begin_flow_run, reporting_ranks
from tests.helpers import forked_agents
from tests.helpers.command_server import load_libraries, require_forkable, serve
from tests.helpers.commands import ROOT
from tests.helpers.forked_agents import Nursery, environment_of_server
from tests.helpers.prefect_server import running

ROOM = 256


@contextmanager
def forking_flow_runs(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The command by which a worker starts a flow run, for as long as the block."""
    address = folder / "flow-runs"
    given = environment_of_server({**environment, **ENVIRONMENT, "PYTHONPATH": str(ROOT)})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(1_000)
        command = [sys.executable, "-m", __name__, str(listener.fileno()), " " * ROOM]
        with running(command, given, folder / "flow-runs.log", ROOT, pass_fds=(listener.fileno(),)):
            listener.close()
            yield shlex.join([sys.executable, "-S", "-E", str(begin_flow_run.__file__), str(address)])


def main() -> None:
    """Load it all; and in each process that was forked be the flow run."""
    started_with = dict(os.environ)
    load_libraries()
    import prefect.engine
    import prefect.flow_engine

    import holdfast.deployments  # noqa: F401 - after what it would have imported later
    import tasks.reporting.curves as curves

    _ = curves.draw_training  # it is imported to be executed on first use
    require_forkable()
    serve(socket.socket(fileno=int(sys.argv[1])))
    vars(forked_agents)["agent"] = reporting_ranks
    Nursery(started_with).use()
    del sys.modules[prefect.engine.__name__]  # or Python warns that it is about to be executed a second time
    runpy.run_module("prefect.engine", run_name="__main__")


if __name__ == "__main__":
    main()
