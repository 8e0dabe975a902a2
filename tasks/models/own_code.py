"""Code of the user's own: what of it a new run pins, whether it changed since, and where a command gets it from.

Invariant: a function is named by the user's configuration file or by what he types. What a store says of it is never
imported: of a stored configuration the place is taken out before anything is done with it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError
from storage.runs.run_state import RunState
from tasks.config.changes import code_as_it_is, read_stored
from tasks.config.paths import absolute_function
from tasks.configuration.run import RunConfig
from training.model_configuration import MODULE, ModuleConfig
from training.own_code import Reference, parse_reference, require_pinned

OPTION = "--factory"


def pin_code(config: RunConfig) -> RunConfig:
    """The configuration of a new run with the hashes of the code that it names; raises `ConfigurationError`."""
    if isinstance(config.model, ModuleConfig):
        model = config.model.model_copy(update={"pinned": code_as_it_is(config.model.reference)})
        config = config.model_copy(update={"model": model})
    optimizer = config.train.optimizer_reference
    if optimizer is not None:
        train = config.train.model_copy(update={"optimizer_pinned": code_as_it_is(optimizer)})
        config = config.model_copy(update={"train": train})
    return config


def require_same_code(config: RunConfig) -> None:
    """Raise `IncompatibleRunError`, naming the files, if the code of a begun run is not what it was begun with."""
    require_same_module(config)
    optimizer = config.train.optimizer_reference
    if optimizer is not None and config.train.optimizer_pinned is not None:
        require_pinned(optimizer, config.train.optimizer_pinned)


def require_same_module(config: RunConfig) -> None:
    """As above, of the model alone: for what builds no optimizer."""
    if isinstance(config.model, ModuleConfig):
        require_pinned(config.model.reference, config.model.pin)


def typed_reference(text: str) -> Reference:
    """The function that --factory names, a relative path taken from the working directory."""
    return parse_reference(absolute_function(text, Path.cwd()), OPTION)


def stored_values(state: RunState) -> dict[str, Any]:
    """A run's stored configuration without where its module's code is, which the user has to say."""
    values = read_stored(state.config)
    if values["model"]["kind"] == MODULE:
        values["model"] = {name: value for name, value in values["model"].items() if name != "factory"}
    return values


def require_factory(values: Mapping[str, Any], run: str) -> None:
    """Raise `ConfigurationError` if the model of these values is the user's module, and nobody said where it is."""
    model = values.get("model", {})
    if model.get("kind") == MODULE and not model.get("factory"):
        raise ConfigurationError(
            f"The model of run {run!r} is a module of its owner's code, and no code is imported that a store names. "
            f"Say where it is: give the run's configuration file in place of its address, or {OPTION} FILE.py:FUNCTION."
        )


def require_no_own_code(config: RunConfig) -> None:
    """Raise `ConfigurationError` for a run that is to be trained by what its store says, if that names code."""
    if isinstance(config.model, ModuleConfig) or config.train.optimizer_reference is not None:
        raise ConfigurationError(
            f"Run {config.run!r} is trained with its owner's own code, and no code is imported that a store names. "
            "Go on with its configuration file: `holdfast run CONFIG`, or the deployment that trains it."
        )
