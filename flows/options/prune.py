"""What is typed for `holdfast prune`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, RunArgument, find_run, print_result


def prune(
    run: RunArgument,
    assignments: Assignments = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and change nothing.")] = False,
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Also delete the files of checkpoints that earlier segments set aside."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the checkpoints that a run no longer keeps.

    Which ones stay is decided by the checkpoint.keep fields that the run was last continued with; --set
    checkpoint.keep=2 and the like change them for this one call. The resume point, the one before it and what is being
    read always stay. Incomplete saves and checkpoints that were never promoted are deleted too. Safe while the run is
    in training.
    """
    from flows.commands.prune import prune_run, render_prune

    store, name = find_run(run, assignments or [])
    print_result(prune_run(store, name, assignments or [], dry_run, set_aside), as_json, render_prune)
