"""Arguments and options that several commands have, and how what they name is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.results import print_progress
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.objects.addresses as addresses
    import storage.runs.addresses as run_addresses
    import storage.runs.manifest as manifests
    import tasks.config.changes as compatibility
    import tasks.config.load as settings
    import tasks.configuration.run as configuration
    import tasks.data.expectations.user_suite as user_suite
    import tasks.data.listing as listing
    import tasks.data.readers.check as check
    import tasks.models.own_code as own_code
    import tasks.models.pretrained as pretrained
    import tasks.run_paths as run_paths

if TYPE_CHECKING:
    from storage.objects.store import Store
    from tasks.configuration.run import RunConfig

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
FactoryOption = Annotated[
    str | None,
    typer.Option(
        "--factory",
        metavar="FILE.py:FUNCTION",
        help="What builds the model, where that is a module of your own code: a function in a file, or "
        "PACKAGE.MODULE:FUNCTION. A configuration file names it too; of an address alone it is not taken.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A configuration file, or the run's address STORE/runs/NAME.")
]


def read_configuration(path: Path, assignments: list[str]) -> RunConfig:
    """The configuration, after a look at the source, and at where a run writes.

    Prints what it does: a person sees a line at once, and a mistake before any library is loaded that takes seconds. A
    run that was begun has its data set, and may need no source any more: of it only the configuration is compared.
    Raises `ConfigurationError`, `ContractError` or `StoreError`.
    """
    print_progress(f"Reading the configuration {path}.")
    config = settings.load_configuration(path, assignments)
    places = run_paths.open_run_paths(config)
    head = places.manifest.find_head()
    if head is not None:
        begun = compatibility.as_begun(config, head.state)
        compatibility.require_compatible(head.state, begun)
        own_code.require_same_code(begun)
    else:
        _look_at_new_run(config)
    addresses.check_writable(places.store)
    run_paths.require_scratch(places)
    return config


def _look_at_new_run(config: RunConfig) -> None:
    own_code.pin_code(config)  # raises where it is not there
    if config.model.kind == "pretrained":  # the tokenizers' library takes a moment to load
        pretrained.require_files(config.model)
    files = listing.find_source(config.data)
    print_progress(f"Checking the columns of {config.data.source}.")
    check.check_columns(files, config.data)
    check.check_first_rows(files, config.data)
    user_suite.read_suite(config.data)


def find_run(text: str, assignments: list[str]) -> tuple[Store, str]:
    """The run behind a configuration file or an address, after the assignments."""
    if is_file(text):
        config = settings.load_configuration(Path(text), assignments)
        return addresses.open_store(config.store), config.run
    store, run = run_addresses.find_target(text)
    if run is None:
        raise _no_run(text, manifests.find_runs(store))
    if not assignments:
        return store, run
    stored = manifests.Manifest(store, run).load_head().state.config
    values = settings.change_values(stored | {"store": store.address}, assignments)
    config = settings.configure(configuration.RunConfig, values, f"configuration of {text}")
    return addresses.open_store(config.store), config.run


def open_stores(targets: list[str], assignments: list[str]) -> list[Store]:
    """The stores behind addresses, and those that configuration files name after the assignments."""
    return [_open_store(target, assignments) for target in targets]


def _open_store(target: str, assignments: list[str]) -> Store:
    if is_file(target):
        return addresses.open_store(settings.load_configuration(Path(target), assignments).store)
    store, _run = run_addresses.find_target(target)
    return store


def find_factory(run: str, assignments: list[str], typed: str | None) -> str | None:
    """Where the user says that his module's code is: by the option, or in the configuration file that he gives."""
    if typed is not None:
        return own_code.typed_reference(typed).name
    if not is_file(run):
        return None
    model = settings.load_configuration(Path(run), assignments).model
    return model.factory if model.kind == "module" else None


def is_file(text: str) -> bool:
    """Whether an argument names a file; if not it is an address."""
    try:
        return Path(text).is_file()
    except OSError:
        return False  # too long for a path, or behind a folder that may not be looked into


def _no_run(text: str, runs: list[str]) -> ConfigurationError:
    """The error for an argument that names a store, or nothing that is there, where a run is to be named."""
    if runs:
        return ConfigurationError(
            f"{text!r} is a store, and this command takes one run: STORE/runs/NAME. Its runs are {', '.join(runs)}."
        )
    return ConfigurationError(
        f"{text!r} is neither a configuration file that is there nor a run's address. "
        "Give a TOML file, or the address as `holdfast run` prints it: STORE/runs/NAME."
    )
