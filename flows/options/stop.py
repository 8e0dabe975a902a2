"""What is typed for `holdfast stop`."""

from typing import Annotated

import typer

from flows.options.shared import Assignments, RunArgument, find_run


def stop(
    run: RunArgument,
    assignments: Assignments = None,
    wait: Annotated[bool, typer.Option(help="Wait until it has saved and ended.")] = True,
) -> None:
    """Ask whoever trains a run to save and end.

    From any machine that reaches the store, and nothing is lost. A schedule begins the run again at its next time:
    pause it first where that is not wanted.
    """
    from flows.commands.stop import stop_run

    stop_run(*find_run(run, assignments or []), wait)
