"""What is typed for `holdfast status`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, find_run, is_file, print_result


def status(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|RUN", help="A configuration file, a run's address STORE/runs/NAME, or a store: all its runs."
        ),
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Say where a run stands, or list the runs of a store."""
    from flows.commands.runs import list_runs, render_runs
    from flows.commands.status import read_status, render_status
    from storage.runs.addresses import find_target

    if not assignments and not is_file(target):
        store, run = find_target(target)
        found = list_runs(store) if run is None else {}
        if found.get("runs"):
            print_result(found, as_json, render_runs)
            return
    print_result(read_status(*find_run(target, assignments or [])), as_json, render_status)
