"""What is typed for `holdfast report`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options.shared import Assignments, RunArgument, find_run


def report(
    run: RunArgument,
    assignments: Assignments = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the run's report in its store, runs/RUN/report.html.")
    ] = None,
) -> None:
    """Write the page about a run as it stands.

    Also while it trains. What is printed is where the page is.
    """
    from flows.commands.report import report_run

    print(report_run(*find_run(run, assignments or []), out))
