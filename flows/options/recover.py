"""What is typed for `holdfast recover`."""

from typing import Annotated

import typer

from flows.options.shared import Assignments, RunArgument, find_run


def recover(
    run: RunArgument,
    assignments: Assignments = None,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what is shown, without being asked.")] = False,
) -> None:
    """Go on with a run whose newest manifest entry is damaged.

    Shows from which entry before it the run can go on and what would be lost, asks, and does it. What is damaged stays
    where it is. A run whose manifest is sound is left alone.
    """
    from flows.commands.recover import recover_damaged_head

    recover_damaged_head(*find_run(run, assignments or []), yes)
