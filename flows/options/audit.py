"""What is typed for `holdfast audit`."""

import typer

from flows.options.shared import AsJson, Assignments, RunArgument, find_run, print_result


def audit(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Prove from the ledger which samples trained the model.

    Every sample once per epoch, none skipped, none repeated, in the order that the seed determines, up to the promoted
    checkpoint. Exit code 1 if not, with the steps and the samples.
    """
    from flows.commands.audit import audit_with_display, render_audit

    found = audit_with_display(*find_run(run, assignments or []))
    print_result(found, as_json, render_audit)
    if not found["ok"]:
        raise typer.Exit(1)
