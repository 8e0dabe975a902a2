"""What is typed for `holdfast status`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, find_run, is_file, print_result
from storage.errors import ConfigurationError


def status(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|RUN",
            help="A configuration file, a run's address STORE/runs/NAME, or a store: all its runs, as `holdfast runs`.",
        ),
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again and again, until the run is complete or Ctrl-C. Where stdout is no terminal: a line "
            "when something changed.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch looks.", show_default=True)
    ] = 5.0,
) -> None:
    """Say where a run stands, or list the runs of a store."""
    from flows.commands.runs import list_runs, render_runs
    from flows.commands.status import read_status, render_status
    from flows.commands.watch import watch_status
    from storage.runs.addresses import find_target
    from storage.runs.manifest import find_runs

    if watch:
        if as_json:
            raise ConfigurationError("--watch is for people to look at, and --json for programs: give one of them.")
        watch_status(*find_run(target, assignments or []), every)
        return
    if not assignments and not is_file(target):
        store, run = find_target(target)
        if run is None and find_runs(store):
            print_result(list_runs(store), as_json, render_runs)
            return
    print_result(read_status(*find_run(target, assignments or [])), as_json, render_status)
