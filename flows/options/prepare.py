"""What is typed for `holdfast prepare`."""

import shlex
import sys

from flows.options.shared import Assignments, ConfigurationArgument, read_configuration, say


def prepare(configuration: ConfigurationArgument, assignments: Assignments = None) -> None:
    """Prepare a configuration's data set, without training.

    `holdfast run` then finds it, on whatever machine.

    After an interruption of any kind, start the same command again: of a large source what is prepared is kept.
    """
    config = read_configuration(configuration, assignments or [])
    from flows.server import configured_server
    from tasks.data.contract.judge_process import load_judge

    load_judge()  # beside Prefect: each takes seconds to load

    say("Starting Prefect.")
    with configured_server() as server:
        # Prefect takes seconds to import: the server starts meanwhile.
        from flows.prepare import prepare_locally

        if server is not None:
            server.wait()
        prepare_locally(config, shlex.join(["holdfast", *sys.argv[1:]]))
