"""What is typed for `holdfast run`."""

import shlex
import sys

from flows.options.shared import Assignments, ConfigurationArgument, read_configuration, say


def run(configuration: ConfigurationArgument, assignments: Assignments = None) -> None:
    """Train a run to its end, or go on with one that exists.

    After an interruption of any kind, start the same command again: it goes on from the last promoted checkpoint.
    """
    from tasks.stopping.notices.scheduler import leave_on_scheduler_signals

    leave_on_scheduler_signals()
    config = read_configuration(configuration, assignments or [])
    from flows.server import configured_server

    say("Starting Prefect.")
    with configured_server() as server:
        # Prefect takes seconds to import: the server starts meanwhile.
        from flows.local import run_locally

        if server is not None:
            server.wait()
        run_locally(config, shlex.join(["holdfast", *sys.argv[1:]]))
