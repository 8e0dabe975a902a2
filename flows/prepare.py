"""Preparing a data set without training on it: the command `prepare`, and the flow behind the deployment.

Invariant: what it prepares is what `holdfast run` with the same configuration finds, on whatever machine; a data set
that is there already is found and nothing is written.
"""

import signal
import sys
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.deployed import describe_failure, told
from storage.datasets import SPLITS, DatasetManifest, dataset_key
from storage.errors import HoldfastError
from storage.objects.addresses import open_store
from tasks.configuration import RunConfig
from tasks.prepare import prepare_data
from tasks.returned import call_through_prefect, current_call
from tasks.settings.reading import load_configuration
from tasks.telling.messages import show_messages
from tasks.telling.terminal import console


@flow(name="prepare", flow_run_name="{configuration}", persist_result=False, retries=0)
def prepare(configuration: str, assignments: tuple[str, ...] = ()) -> State[None]:
    """Prepares the data set of a configuration, so that no GPU waits for it; a run then finds it.

    What a flow run that was killed has prepared is kept, and the next one goes on from there.

    Args:
        configuration: Configuration file (TOML) on the worker's machine, relative to the deployment's folder.
        assignments: Fields to change after the file is read, each as KEY=VALUE, for instance prepare.workers=8. A
            relative path in the file is taken from the file's folder, one given here from the deployment's folder.
    """
    try:
        dataset = prepare_data(load_configuration(Path(configuration), assignments))
        return told(Completed(message=describe_dataset(dataset)))
    except HoldfastError as error:
        return told(describe_failure(error))


@flow(name="prepare data set", flow_run_name="{config.run}", persist_result=False, retries=0)
def _prepare(config: RunConfig) -> None:
    returned = current_call()
    with returned.noting_errors():
        returned.note(prepare_data(config))


def prepare_locally(config: RunConfig, command: str) -> None:
    """Prepare in this process. Exits with 128 plus the signal's number when asked to stop. Raises `HoldfastError`.

    `command` is what goes on with it after that.
    """
    show_messages()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        dataset: DatasetManifest = call_through_prefect(lambda: _prepare(config)).take()
    except (KeyboardInterrupt, SystemExit) as stop:
        console.print(f"Stopped. To go on with what is prepared already: {command}", soft_wrap=True)
        sys.exit(stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT)
    store = open_store(config.store)
    print(f"data set {store.address}/{dataset_key(dataset.digest).rstrip('/')}")
    print(describe_dataset(dataset))


def describe_dataset(dataset: DatasetManifest) -> str:
    """One sentence about what is in it."""
    counts = ", ".join(f"{dataset.splits[name].num_rows:,} {name}" for name in SPLITS)
    num_tokens = sum(split.num_tokens for split in dataset.splits.values())
    return f"{counts} samples, {num_tokens:,} tokens, {len(dataset.target.classes)} classes."
