"""What is typed for `holdfast logs`."""

from typing import Annotated

import typer

from flows.options.shared import Assignments, RunArgument, find_run


def logs(
    run: RunArgument,
    assignments: Assignments = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Only the lines of this rank. What torchrun, and libraries from C code, print names no rank and is "
            "left out then.",
        ),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(
            metavar="FENCE",
            help="Of the segment with this fence, as `holdfast status` lists them. Default: the newest.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Go on with what comes, and with the next segment, until the run is complete or Ctrl-C; with "
            "--segment until that one has ended.",
        ),
    ] = False,
) -> None:
    """Print what the ranks of the newest segment have printed.

    From the store alone, so from any machine. While ranks work it is up to a few seconds old, and of each machine the
    newest 1 MiB.
    """
    from flows.commands.logs import follow_logs, print_logs

    show = follow_logs if follow else print_logs
    show(*find_run(run, assignments or []), segment, rank)
