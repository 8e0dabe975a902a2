"""What is typed for `holdfast scrub`."""

from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, find_run, is_file, print_result


def scrub(
    target: Annotated[
        str, typer.Argument(metavar="STORE|RUN", help="A store, a run's address STORE/runs/NAME, or a configuration.")
    ],
    assignments: Assignments = None,
    megabytes_per_second: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Read no faster than this, on average.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hash all that is kept again, and report damage.

    Of a run, or of all runs of a store: checkpoints, ledger and data set. Exit code 1 if any of it is damaged. What is
    read is what the store has, not copies on this machine. A damaged checkpoint of a run that is not in training is set
    aside. With PREFECT_API_URL set, the server gets an event holdfast.rot for each damaged thing. Safe while runs are
    in training; for a schedule, see the deployment `scrub`.
    """
    from flows.scrub import render_scrub, scrub_with_display
    from storage.runs.addresses import find_target
    from tasks.telling.messages import show_messages

    show_messages()
    names_a_run = bool(assignments) or is_file(target)
    found = scrub_with_display(
        *(find_run(target, assignments or []) if names_a_run else find_target(target)), megabytes_per_second
    )
    print_result(found, as_json, render_scrub)
    if not found["ok"]:
        raise typer.Exit(1)
