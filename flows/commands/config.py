"""`holdfast config`: a configuration with a description of every field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.arguments import Assignments
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import tasks.config.load as settings
    import tasks.config.template as template
    import tasks.data.expectations.verdict as verdict


def config(
    configuration: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Configuration file (TOML). If not given: a new one to start from."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also show every field that is not set, as a comment with its default.")
    ] = False,
    expectations: Annotated[
        bool,
        typer.Option(
            "--expectations",
            help="Print what is expected of the data by default in place of that, as a suite in Great Expectations' "
            "format: a start for data.expectations.",
        ),
    ] = False,
    assignments: Assignments = None,
) -> None:
    """Print a configuration with a description of every field.

    The output is a configuration file itself. To start: holdfast config > run.toml, then change what is in it. To see
    all that can be set: holdfast config --full.
    """
    assigned = assignments or []
    found = (
        template.start_configuration(assigned)
        if configuration is None
        else settings.load_configuration(configuration, assigned)
    )
    if expectations:
        print(verdict.render_default_suite(found.data))
    else:
        print(template.render_configuration(found, full), end="")
