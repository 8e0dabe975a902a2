"""What is typed for `holdfast recover`."""

from typing import Annotated

import typer

from flows.options.shared import Assignments, RunArgument, find_run


def recover(
    run: RunArgument,
    assignments: Assignments = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Give up all checkpoints of the run: it begins anew at step 0.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what is shown, without being asked.")] = False,
) -> None:
    """Go on with a run whose newest manifest entry is damaged.

    Shows from which entry before it the run can go on and what would be lost, asks, and does it. What is damaged stays
    where it is. A run whose manifest is sound is left alone. With --from-start, for a run of which no checkpoint can be
    used any more: it begins anew.
    """
    from flows.commands.recover import begin_anew_at_step_0, recover_damaged_head

    go_on = begin_anew_at_step_0 if from_start else recover_damaged_head
    go_on(*find_run(run, assignments or []), yes)
