"""Reading a configuration: one TOML file, and assignments from the command line.

Invariant: a mistake in either is one `ConfigurationError` that names every wrong field.
"""

import copy
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from storage.errors import ConfigurationError
from tasks.config.hints import explain_encoding, explain_toml_error
from tasks.config.mistakes import describe_mistakes
from tasks.config.paths import absolute_path, absolute_paths
from tasks.configuration.run import RunConfig
from training.configuration import ConfigModel

Config = TypeVar("Config", bound=ConfigModel)
# What is assigned takes the place of what the file has of the other.
INSTEAD_OF_EACH_OTHER = (("train.steps", "train.epochs"), ("train.epochs", "train.steps"))
# A relative path as any other: as if it stood in the file.
DEFAULT_STORE = {"store": RunConfig.model_fields["store"].default}


def load_configuration(path: Path, assignments: Sequence[str] = ()) -> RunConfig:
    """Read a TOML file and apply `key.path=value` assignments. Raises `ConfigurationError` naming every wrong field.

    A relative path is taken from the file's folder, in an assignment from the working directory.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # an editor may have put a byte order mark before it
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration {path}: {error.strerror}. "
            "Give the path of a TOML file; those in deployments/configs are examples."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"The configuration {path} is not valid TOML: {explain_encoding(error)}") from error
    except tomllib.TOMLDecodeError as error:
        explained = explain_toml_error(text, error)
        raise ConfigurationError(f"The configuration {path} is not valid TOML: {explained}") from error
    in_file = absolute_paths(DEFAULT_STORE | values, Path(absolute_path(str(path.parent), Path.cwd())))
    changed = change_values(in_file, assignments)
    return configure(RunConfig, absolute_paths(changed, Path.cwd()), f"configuration {path}")


def change_values(values: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of nested values with `key.path=value` assignments applied, the later ones last."""
    changed = copy.deepcopy(values)
    for assignment in assignments:
        _assign(changed, assignment)
    return changed


def configure(model: type[Config], values: dict[str, Any], origin: str) -> Config:
    """Build a configuration; raises one `ConfigurationError` that names every wrong field and where it came from."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in describe_mistakes(model, error.errors()))
        raise ConfigurationError(f"The {origin} is wrong:\n{problems}") from error


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, separator, text = assignment.partition("=")
    if not separator or not key.strip():
        raise ConfigurationError(f"--set takes key=value, for instance train.steps=500; found {assignment!r}.")
    *sections, name = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigurationError(f"--set {assignment}: {section} is a value, not a section.")
    values[name] = _parse_value(text.strip())
    for one, other in INSTEAD_OF_EACH_OTHER:
        if key.strip() == one and other.rpartition(".")[2] in values:
            del values[other.rpartition(".")[2]]


def _parse_value(text: str) -> Any:
    """A TOML value where it is one; everything else is text, so that paths and names need no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text
