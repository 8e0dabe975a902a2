"""Preparing a data set without training on it: the flow behind the deployment, and the one of the command `prepare`.

Invariant: what it prepares is what `holdfast run` with the same configuration finds, on whatever machine; a data set
that is there already is found and nothing is written.
"""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.deployed import ending_in_one_sentence
from storage.datasets import SPLITS, DatasetManifest
from tasks.config.load import load_configuration
from tasks.configuration.run import RunConfig
from tasks.prefect_bridge.returned import call_through_prefect, current_call
from tasks.prepare import prepare_data


@flow(name="prepare", flow_run_name="{configuration}", persist_result=False, retries=0)
@ending_in_one_sentence
def prepare(configuration: str, assignments: tuple[str, ...] = ()) -> State[None]:
    """Prepares the data set of a configuration, so that no GPU waits for it; a run then finds it.

    What a flow run that was killed has prepared is kept, and the next one goes on from there.

    Args:
        configuration: Configuration file (TOML) on the worker's machine, relative to the deployment's folder.
        assignments: Fields to change after the file is read, each as KEY=VALUE, for instance prepare.workers=8. A
            relative path in the file is taken from the file's folder, one given here from the deployment's folder.
    """
    dataset = prepare_data(load_configuration(Path(configuration), assignments))
    return Completed(message=describe_dataset(dataset))


@flow(name="prepare data set", flow_run_name="{config.run}", persist_result=False, retries=0)
def _prepare(config: RunConfig) -> None:
    returned = current_call()
    with returned.noting_errors():
        returned.note(prepare_data(config))


def prepare_in_flow(config: RunConfig) -> DatasetManifest:
    """Prepare in a flow run of this process. Raises `HoldfastError`."""
    dataset: DatasetManifest = call_through_prefect(lambda: _prepare(config)).take()
    return dataset


def describe_dataset(dataset: DatasetManifest) -> str:
    """One sentence about what is in it."""
    counts = ", ".join(f"{dataset.splits[name].num_rows:,} {name}" for name in SPLITS)
    num_tokens = sum(split.num_tokens for split in dataset.splits.values())
    return f"{counts} samples, {num_tokens:,} tokens, {len(dataset.target.classes)} classes."
