"""Task `remember what was given`: what a person gives a run by `resume` stays for later flow runs of the same file.

Invariant: nothing is given to a run in training, whose ranks would not know of it.
"""

from collections.abc import Mapping

from storage.runs.run_records import OverrideValue
from storage.runs.run_state import RunState
from storage.runs.transitions import set_overrides
from tasks.config.changes import read_stored, require_compatible
from tasks.config.overrides import describe_overrides
from tasks.configuration.run import RunConfig
from tasks.promote import promote
from tasks.recovery.settle import recover_run
from tasks.retrying import Retry
from tasks.run_paths import open_run_paths
from tasks.step import step

Number = int | float


@step("remember what was given")
def remember_overrides(config: RunConfig, values: Mapping[str, Number]) -> tuple[RunState, str]:
    """Write these values, by dotted field, into the manifest, so that later flow runs of the same file keep them.

    Settles first what a dead process left. Raises `RunBusyError` while the run is in training, and
    `IncompatibleRunError` if it could not go on with this configuration.
    """
    run_paths = open_run_paths(config)

    def attempt() -> tuple[RunState, str]:
        require_compatible(run_paths.manifest.load_head().state, config)
        state = recover_run(config, run_paths, promote)
        require_compatible(state, config)  # with what was promoted just now
        overrides = _overridden_with(state, values)
        if overrides != state.overrides:
            state = run_paths.manifest.commit("overrides kept", set_overrides(overrides)).state
        return state, describe_overrides(overrides)

    return Retry(config.retry).call("Recording the overrides", attempt)


def _overridden_with(state: RunState, values: Mapping[str, Number]) -> dict[str, OverrideValue]:
    """What is given to the run once these are. What the file had stays what it was before the first of them."""
    overrides = dict(state.overrides)
    for field, value in values.items():
        earlier = overrides.pop(field, None)
        instead_of = earlier.instead_of if earlier is not None else _configured(state, field)
        if value != instead_of:
            overrides[field] = OverrideValue(instead_of=instead_of, value=value)
    return overrides


def _configured(state: RunState, field: str) -> Number | None:
    section, name = field.split(".")
    values = RunConfig.model_validate(read_stored(state.config)).model_dump(mode="json")
    number: Number | None = values[section][name]
    return number
