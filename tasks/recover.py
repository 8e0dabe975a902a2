"""Taking up a run, whether it is new or not: its data set, its configuration, its manifest.

Invariant: a run whose data or configuration changed is refused before anything is written, and so is one that a living
process holds.
"""

import time

from prefect import task
from prefect.cache_policies import NO_CACHE

from storage.datasets import DatasetManifest, find_dataset
from storage.errors import IncompatibleRunError
from storage.objects.addresses import check_writable
from storage.objects.digests import digest_of
from storage.runs.run_state import RunState
from storage.runs.transitions import reconfigure
from tasks.compatibility import describe_changes, read_stored, require_compatible
from tasks.configuration import RunConfig
from tasks.data.difference import describe_difference
from tasks.data.pipeline import find_inputs, prepare_dataset
from tasks.data.sources.files import describe_change
from tasks.places import RunPlaces, open_places, require_scratch
from tasks.running.refused import judge_again
from tasks.running.settle import recover_run, require_dead_holder
from tasks.telling.announce import announce
from tasks.telling.display import PreparationDisplay


@task(name="prepare", cache_policy=NO_CACHE, persist_result=False)
def prepare_data(config: RunConfig) -> DatasetManifest:
    """The published data set of the configured source, made if it is not there yet."""
    places = open_places(config)
    check_writable(places.store)
    require_scratch(places)
    head = places.manifest.find_head()
    if head is not None:
        if head.state.lease is not None:
            require_dead_holder(places, head.state.lease)
        require_compatible(head.state, config)
        _require_same_data(config, places, head.state)
    with PreparationDisplay() as display:
        return prepare_dataset(config.data, places.store, places.data_scratch, display.show)


@task(name="recover", cache_policy=NO_CACHE, persist_result=False)
def recover(config: RunConfig, dataset: DatasetManifest) -> RunState:
    """Begin a new run, or settle what the last segment of an old one left; where it stands now."""
    places = open_places(config)
    head = places.manifest.find_head()
    if head is None:
        return places.manifest.create(_first_state(config, dataset)).state
    state = recover_run(config, places)
    if state.config != config.model_dump(mode="json"):
        _announce_changes(state, config)
        change = reconfigure(config.model_dump(mode="json"), config.train.steps)
        state = places.manifest.commit("configuration changed", change).state
    return judge_again(config, places, state)


def _first_state(config: RunConfig, dataset: DatasetManifest) -> RunState:
    return RunState(
        run=config.run,
        created_at=time.time(),
        config=config.model_dump(mode="json"),
        dataset_digest=dataset.digest,
        steps_total=config.train.steps,
    )


def _require_same_data(config: RunConfig, places: RunPlaces, state: RunState) -> None:
    """Raise `IncompatibleRunError` if the source is not the one the run was started with, before it is prepared."""
    inputs = find_inputs(config.data, places.data_scratch)
    if digest_of(inputs) == state.dataset_digest:
        return
    before = find_dataset(places.store, state.dataset_digest)
    changes = describe_change(before, inputs) if before else ["its data set is no longer in the store"]
    now = find_dataset(places.store, digest_of(inputs))  # there if another run has it
    if before is not None and now is not None:
        changes += describe_difference(before, now)
    raise IncompatibleRunError(
        f"The data of run {state.run!r} changed since it was started:\n"
        + "\n".join(f"  {change}" for change in changes)
        + "\nRestore the data to go on with the run, or give another run name to start a new one."
    )


def _announce_changes(state: RunState, config: RunConfig) -> None:
    for field, text in describe_changes(read_stored(state.config), config.model_dump(mode="json")).items():
        announce(f"Configuration changed: {text}.")
        if field in ("train.ranks", "train.share_gpus") and config.train.sum == "fast" and state.promoted is not None:
            announce(
                "With train.sum = 'fast' the order of samples stays exact, but the weights will not be those of a run "
                "that goes on as it was begun."
            )
        if field == "train.steps" and state.promoted is not None:
            announce(
                "The learning rate falls over the new number of steps from here on: the model will not be the one that "
                "a run planned for so many steps from the start would give."
            )
