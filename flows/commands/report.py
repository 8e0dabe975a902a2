"""`holdfast report`: the page about a run as it stands, beside the run or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.datasets as datasets
    import storage.runs.manifest as manifests
    import tasks.reporting.written as written

if TYPE_CHECKING:
    from storage.objects.store import Store


def report(
    run: RunArgument,
    assignments: Assignments = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the run's report in its store, runs/RUN/report.html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the page about a run as it stands.

    Also while it trains. What is printed is where the page is.
    """
    store, name = find_run(run, assignments or [])
    found = {"run": name, "report": report_run(store, name, out)}
    print_result(found, as_json, lambda found: str(found["report"]))


def report_run(store: Store, run: str, out: Path | None) -> str:
    """Where the page is that was written. Raises `RunMissingError`, `ObjectMissingError`, `ConfigurationError`."""
    state = manifests.Manifest(store, run).load_head().state
    dataset = datasets.load_dataset(store, state.dataset_digest, state.dataset_sha256)
    if out is None:
        written.write_report(store, state, dataset)
        return written.report_address(store, run)
    page = written.make_report(store, state, dataset)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"Cannot write the report to {out}: {error.strerror}. Give another file.") from error
    return str(out)
