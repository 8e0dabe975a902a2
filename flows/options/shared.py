"""Arguments and options that several commands have, and how their results are printed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storage.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from storage.objects.store import Store
    from tasks.configuration import RunConfig

Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a field, for instance train.steps=500; can be repeated. A relative path is taken from the working "
        "directory here, and from the file's folder in the file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ConfigurationArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file (TOML).")]
CheckpointChoice = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="best|newest|STEP",
        help="Of the checkpoints that the run keeps: best by the validation's AUC, or macro-F1; the newest promoted "
        "one; or the one of this step.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A configuration file, or the run's address STORE/runs/NAME.")
]


def read_configuration(path: Path, assignments: list[str]) -> "RunConfig":
    """The configuration, after a look at the source's columns. Raises `ConfigurationError` or `ContractError`.

    Says what it does: a person sees a line at once, and a mistake before any library is loaded that takes seconds. A
    run that was begun has its data set, and may need no source any more: of it only the configuration is compared.
    """
    say(f"Reading the configuration {path}.")
    from tasks.settings.reading import load_configuration

    config = load_configuration(path, assignments)
    from storage.objects.addresses import open_store
    from storage.runs.manifest import Manifest
    from tasks.data.listing import find_source
    from tasks.data.readers.check import check_columns
    from tasks.keeping.compatibility import as_begun, require_compatible

    head = Manifest(open_store(config.store), config.run).find_head()
    if head is not None:
        require_compatible(head.state, as_begun(config, head.state))
        return config
    files = find_source(config.data)
    say(f"Checking the columns of {config.data.source}.")
    check_columns(files, config.data)
    return config


def find_run(text: str, assignments: list[str]) -> "tuple[Store, str]":
    """The run behind a configuration file or an address, after the assignments."""
    from storage.objects.addresses import open_store
    from storage.runs.addresses import find_target
    from storage.runs.manifest import Manifest, find_runs
    from tasks.configuration import RunConfig
    from tasks.keeping.compatibility import in_words_of_now
    from tasks.settings.reading import change_values, configure, load_configuration

    if is_file(text):
        config = load_configuration(Path(text), assignments)
        return open_store(config.store), config.run
    store, run = find_target(text)
    if run is None:
        raise _no_run(text, find_runs(store))
    if not assignments:
        return store, run
    started_with = in_words_of_now(Manifest(store, run).load_head().state.config) | {"store": store.address}
    config = configure(RunConfig, change_values(started_with, assignments), f"configuration of {text}")
    return open_store(config.store), config.run


def is_file(text: str) -> bool:
    """Whether an argument names a file; if not it is an address."""
    try:
        return Path(text).is_file()
    except OSError:
        return False  # too long for a path, or behind a folder that may not be looked into


def print_result(found: dict[str, Any], as_json: bool, render: "Callable[[dict[str, Any]], RenderableType]") -> None:
    """A command's result on stdout: as JSON, or as `render` shows it to a person."""
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from tasks.telling.terminal import print_content

    print_content(render(found))


def _no_run(text: str, runs: list[str]) -> ConfigurationError:
    """What is said to somebody who names a store, or nothing that is there, where a run is to be named."""
    if runs:
        return ConfigurationError(
            f"{text!r} is a store, and this command takes one run: STORE/runs/NAME. Its runs are {', '.join(runs)}."
        )
    return ConfigurationError(
        f"{text!r} is neither a configuration file that is there nor a run's address. "
        "Give a TOML file, or the address as `holdfast run` prints it: STORE/runs/NAME."
    )


def say(text: str) -> None:
    """A line on stderr, now."""
    print(text, file=sys.stderr, flush=True)
