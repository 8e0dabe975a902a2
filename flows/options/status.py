"""What is typed for `holdfast status`."""

from flows.options.shared import AsJson, Assignments, RunArgument, find_run, print_result


def status(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Say where a run stands."""
    from flows.commands.status import read_status, render_status

    found = read_status(*find_run(run, assignments or []))
    print_result(found, as_json, render_status)
