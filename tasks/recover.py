"""Task `recover`: begin a new run, or settle what the last segment of an old one left.

Invariant: a run is never taken from a process that lives, and a changed configuration is in the manifest before the
ranks are started with it.
"""

import time

from storage.datasets import DatasetManifest, dataset_sha256, load_dataset
from storage.errors import ConfigurationError, ConflictError, IncompatibleRunError
from storage.lazy_imports import lazy_imports
from storage.runs.run_records import ByRows, StartRecord
from storage.runs.run_state import RunState
from storage.runs.transitions import reconfigure
from tasks.config.by_rows import describe_by_rows, resolve_by_rows
from tasks.config.changes import PINNED_CODE, as_begun, describe_changes, read_stored, require_compatible
from tasks.config.out_of_memory import adapt
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.models.brought import pin_brought
from tasks.promote import promote
from tasks.promotion.rejected import gate_again
from tasks.recovery.settle import recover_run
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step
from tasks.text import how_far
from training.model_configuration import PretrainedConfig

# It loads torch, which the process of a flow otherwise never does.
with lazy_imports():
    import tasks.models.pretrained_weights as pretrained_weights
    import tasks.models.start_from as start_from


@step("recover")
def recover(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """Begin a new run, or settle what the last segment of an old one left; where it stands now."""
    return Retry(config.retry).call("Taking the run up", lambda: _take_up(config, dataset, open_run_paths(config)))


def _take_up(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths) -> tuple[RunState, str]:
    head = run_paths.manifest.find_head()
    if head is not None:
        return _go_on(config, dataset, run_paths, head.state)
    begun = _begin(config, dataset, run_paths)
    if begun is not None:
        return begun
    # Two flow runs for a new run, such as a tick of its schedule while somebody submits one: the other one was quicker.
    return _go_on(config, dataset, run_paths, run_paths.manifest.load_head().state)


def _begin(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths) -> tuple[RunState, str] | None:
    """The first generation of a new run; None if another process put one meanwhile."""
    config, by_rows = resolve_by_rows(config, dataset.splits["train"].num_rows)
    config = pin_brought(as_begun(config, None))
    _require_prepared_with(config, dataset)
    first = _first_state(config, dataset, run_paths, by_rows)
    try:
        state = run_paths.manifest.create(first).state
    except ConflictError:
        return None
    if by_rows is not None:
        announce(f"{describe_by_rows(by_rows)}. The run keeps these settings; what its file sets goes before.")
    return state, _describe_begin(config)


def _go_on(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths, state: RunState) -> tuple[RunState, str]:
    """Settle what the last segment of a run left. Raises `RunBusyError` if its process lives."""
    config = as_begun(config, state)
    # Another process may have begun it, or gone on with it, since the data were prepared.
    require_compatible(state, config)
    _require_same_dataset(state, dataset)
    load_dataset(run_paths.store, state.dataset_digest, state.dataset_sha256)  # or one that was prepared again
    state = recover_run(config, run_paths, promote)
    if state.lease is not None:
        return state, "Its ranks work on in a job of the cluster."
    config = adapt(config, run_paths, state)
    require_compatible(state, config)  # with what was promoted just now
    if state.config != config.model_dump(mode="json"):
        _announce_changes(state, config)
        change = reconfigure(config.model_dump(mode="json"), config.train.num_steps)
        state = run_paths.manifest.commit("configuration changed", change).state
    state = gate_again(config, run_paths, state)
    return state, _describe(state)


def _require_same_dataset(state: RunState, dataset: DatasetManifest) -> None:
    if state.dataset_digest != dataset.digest:
        raise IncompatibleRunError(
            f"Run {state.run!r} has the data set {state.dataset_digest}; what was prepared for it here is "
            f"{dataset.digest}: another command began this run meanwhile. Give another run name to start a new run."
        )


def _first_state(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths, by_rows: ByRows | None) -> RunState:
    return RunState(
        run=config.run,
        created_at=time.time(),
        config=config.model_dump(mode="json"),
        dataset_digest=dataset.digest,
        dataset_sha256=dataset_sha256(run_paths.store, dataset.digest),
        by_rows=by_rows,
        start=find_start(config, dataset, run_paths),
        steps_total=config.train.num_steps,
    )


def _require_prepared_with(config: RunConfig, dataset: DatasetManifest) -> None:
    """Raise `ConfigurationError` if the data were prepared with another tokenizer than the one that is pinned."""
    given, prepared = config.data.tokenizer, dataset.tokenizer
    if given is not None and (prepared is None or prepared.sha256 != given.sha256):
        raise ConfigurationError(
            f"The tokenizer of the pretrained model, {given.path}, was changed while the data were being prepared. Run "
            "again when no program writes to it any more."
        )


def find_start(config: RunConfig, dataset: DatasetManifest, run_paths: RunPaths) -> StartRecord | None:
    """The first weights of a new run, brought into its store; None where they are random ones."""
    if isinstance(config.model, PretrainedConfig):
        return pretrained_weights.bring_pretrained_weights(config, run_paths)
    if config.train.start_from is None:
        return None
    return start_from.bring_first_weights(config, dataset, run_paths)


def _describe_begin(config: RunConfig) -> str:
    origin = config.model.name if isinstance(config.model, PretrainedConfig) else config.train.start_from
    return "A new run: it begins at step 0" + ("." if origin is None else f", with the weights of {origin}.")


def _describe(state: RunState) -> str:
    if state.is_trained:
        return f"Trained to the end: {how_far(state.end_step, state)}."
    step_reached = state.promoted.step if state.promoted else 0
    return f"The run goes on from {how_far(step_reached, state)}."


def _announce_changes(state: RunState, config: RunConfig) -> None:
    changes = describe_changes(read_stored(state.config), config.model_dump(mode="json"))
    for field, text in changes.items():
        announce(f"Configuration changed: {text}.")
        if field in ("train.ranks", "train.share_gpus") and config.train.sum == "fast" and state.promoted is not None:
            announce(
                "With train.sum = 'fast' the order of samples stays exact, but the weights will not be those of a run "
                "that goes on as it was begun."
            )
        if field == "train.steps" and state.promoted is not None:
            announce(
                "The learning rate follows the new number of steps from here on: the model will not be the one that "
                "a run planned for so many steps from the start would give."
            )
    if any(field.startswith(PINNED_CODE) for field in changes):
        announce(
            "No step was made yet, so the run begins with your code as it is now, and goes on with no other. If you "
            "did not mean to change it: stop the run, restore the files, and start it under another name."
        )
