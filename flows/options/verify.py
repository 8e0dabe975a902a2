"""What is typed for `holdfast verify`."""

import typer

from flows.options.shared import AsJson, Assignments, RunArgument, find_run, print_result


def verify(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Hash every checkpoint that is kept and say which are valid. Exit code 1 if one is not."""
    from flows.commands.verify import render_verification, verify_run

    found = verify_run(*find_run(run, assignments or []))
    print_result(found, as_json, render_verification)
    if not found["valid"]:
        raise typer.Exit(1)
