"""What is typed for `holdfast config`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options.shared import Assignments


def config(
    configuration: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Configuration file (TOML). If not given: a new one to start from."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also show every field that is not set, as a comment with its default.")
    ] = False,
    assignments: Assignments = None,
) -> None:
    """Print a configuration with a description of every field.

    The output is a configuration file itself. To start: holdfast config > run.toml, then change what is in it. To see
    all that can be set: holdfast config --full.
    """
    from tasks.settings.reading import load_configuration
    from tasks.settings.template import render_configuration, start_configuration

    assigned = assignments or []
    found = start_configuration(assigned) if configuration is None else load_configuration(configuration, assigned)
    print(render_configuration(found, full), end="")
