"""`holdfast prepare`: a configuration's data set, without training on it.

Invariant: what it prepares is what `holdfast run` with the same configuration finds, on whatever machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.commands.arguments import AsJson, Assignments, ConfigurationArgument, read_configuration
from flows.commands.results import (
    CommandStopped,
    exit_code_of,
    leave_on_signals,
    print_progress,
    print_result,
    this_command,
)
from storage.lazy_imports import lazy_imports
from storage.loading import loading_libraries

with lazy_imports():
    import flows.prefect_server as prefect_server
    import flows.prepare as preparing
    import storage.datasets as datasets
    import storage.objects.addresses as addresses
    import tasks.console.messages as messages

if TYPE_CHECKING:
    from storage.datasets import DatasetManifest
    from tasks.configuration.run import RunConfig


def prepare(configuration: ConfigurationArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Prepare a configuration's data set, without training.

    `holdfast run` then finds it, on whatever machine.

    After an interruption of any kind, start the same command again: of a large source what is prepared is kept.
    """
    with prefect_server.configured_server() as server:
        config = read_configuration(configuration, assignments or [])
        print_progress("Starting Prefect.")
        server.begin()
        with loading_libraries():
            prepare_in_flow = preparing.prepare_in_flow  # loads Prefect, seconds: the server starts meanwhile
        server.wait()
        messages.show_messages()
        leave_on_signals()
        try:
            dataset = prepare_in_flow(config)
        except (KeyboardInterrupt, SystemExit) as stop:
            message = f"Stopped. To go on with what is prepared already: {this_command()}"
            raise CommandStopped(exit_code_of(stop), message) from None
        sentence = preparing.describe_dataset(dataset)
        found = _describe_result(config, dataset)
        print_result(found, as_json, lambda found: f"data set {found['dataset']}\n{sentence}")


def _describe_result(config: RunConfig, dataset: DatasetManifest) -> dict[str, Any]:
    """The data set's address and size, JSON-able."""
    store = addresses.open_store(config.store)
    return {
        "run": config.run,
        "dataset": f"{store.address}/{datasets.dataset_key(dataset.digest).rstrip('/')}",
        "digest": dataset.digest,
        "rows": {name: dataset.splits[name].num_rows for name in datasets.SPLITS},
        "tokens": sum(split.num_tokens for split in dataset.splits.values()),
        "classes": len(dataset.target.classes),
    }
