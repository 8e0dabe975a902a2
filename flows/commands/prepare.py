"""`holdfast prepare`: a configuration's data set, without training on it.

Invariant: what it prepares is what `holdfast run` with the same configuration finds, on whatever machine.
"""

from __future__ import annotations

import signal
import sys

from flows.commands.arguments import Assignments, ConfigurationArgument, read_configuration
from flows.commands.results import say, this_command
from flows.lazy_imports import lazy_imports
from tasks.telling.terminal import console

with lazy_imports():
    import flows.prefect_server as prefect_server
    import flows.prepare as preparing
    import storage.datasets as datasets
    import storage.objects.addresses as addresses
    import tasks.data.contract.judge_process as judge_process
    import tasks.telling.messages as messages


def prepare(configuration: ConfigurationArgument, assignments: Assignments = None) -> None:
    """Prepare a configuration's data set, without training.

    `holdfast run` then finds it, on whatever machine.

    After an interruption of any kind, start the same command again: of a large source what is prepared is kept.
    """
    config = read_configuration(configuration, assignments or [])
    judge_process.load_judge()  # beside Prefect: each takes seconds to load
    say("Starting Prefect.")
    with prefect_server.configured_server() as server:
        prepare_in_flow = preparing.prepare_in_flow  # loads Prefect, which takes seconds: the server starts meanwhile
        if server is not None:
            server.wait()
        messages.show_messages()
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        try:
            dataset = prepare_in_flow(config)
        except (KeyboardInterrupt, SystemExit) as stop:
            console.print(f"Stopped. To go on with what is prepared already: {this_command()}", soft_wrap=True)
            sys.exit(stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT)
        store = addresses.open_store(config.store)
        print(f"data set {store.address}/{datasets.dataset_key(dataset.digest).rstrip('/')}")
        print(preparing.describe_dataset(dataset))
