"""What a person gave a run beside its configuration's file: it holds until the file has another value than it had then.

Invariant: a flow run that reads the same file as before undoes nothing; a value that is written into the file later is
the newer request to stop, and ends what was given. All of it stands in the manifest.
"""

from collections.abc import Mapping

from storage.runs.run_records import OverrideValue
from storage.runs.run_state import RunState
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.retrying import Retry
from tasks.run_paths import open_run_paths


def keep_overrides(config: RunConfig, state: RunState | None) -> RunConfig:
    """The configuration with what was given to the run, where its file has what it had then."""
    for field, overrides in _in_force(config, state).items():
        section, name = field.split(".")
        changed = getattr(config, section).model_copy(update={name: overrides.value})
        config = config.model_copy(update={section: changed})
    return config


def with_overrides(config: RunConfig) -> RunConfig:
    """As `keep_overrides`, for the run as it stands; logs what is not as in the file."""
    run_paths = open_run_paths(config)
    head = Retry(config.retry).call("Reading the run's manifest", run_paths.manifest.find_head)
    kept = keep_overrides(config, head.state if head else None)
    if head is not None and kept != config:
        announce(
            f"{describe_overrides(_in_force(config, head.state))} To end that, write another value into the file, or "
            "start `resume` with the value that the file has."
        )
    return kept


def describe_overrides(overrides: Mapping[str, OverrideValue]) -> str:
    """In a sentence, what does not come from the file."""
    if not overrides:
        return "All values are those of the configuration's file."
    values = [f"{field} is {entry.value}, where the file has {entry.instead_of}" for field, entry in overrides.items()]
    return f"Given to the run by `resume`: {'; '.join(values)}."


def _in_force(config: RunConfig, state: RunState | None) -> dict[str, OverrideValue]:
    """Values by dotted field that the file does not set anew."""
    overrides = state.overrides if state is not None else {}
    return {field: entry for field, entry in overrides.items() if _configured(config, field) == entry.instead_of}


def _configured(config: RunConfig, field: str) -> object:
    section, name = field.split(".")
    return getattr(getattr(config, section), name)
