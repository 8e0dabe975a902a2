"""What is typed for `holdfast runs`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, is_file, print_result


def runs(
    target: Annotated[
        str, typer.Argument(metavar="STORE", help="A store, or a configuration file: the store that it names.")
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a store.

    With state, step, goodput, last sign of life and newest metric of each. `holdfast status STORE` does the same.
    """
    from flows.commands.runs import list_runs, render_runs
    from storage.objects.addresses import open_store
    from storage.runs.addresses import find_target
    from tasks.settings.reading import load_configuration

    if is_file(target):
        store = open_store(load_configuration(Path(target), assignments or []).store)
    else:
        store, _run = find_target(target)
    print_result(list_runs(store), as_json, render_runs)
