"""The command `report`: the page about a run as it stands, beside the run or in a file."""

from pathlib import Path

from storage.datasets import load_dataset
from storage.errors import ConfigurationError
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from tasks.reports.written import make_report, report_address, write_report


def report_run(store: Store, run: str, out: Path | None) -> str:
    """Where the page is that was written. Raises `RunMissingError`, `ObjectMissingError`, `ConfigurationError`."""
    state = Manifest(store, run).load_head().state
    dataset = load_dataset(store, state.dataset_digest, state.dataset_sha256)
    if out is None:
        write_report(store, state, dataset)
        return report_address(store, run)
    page = make_report(store, state, dataset)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"Cannot write the report to {out}: {error.strerror}. Give another file.") from error
    return str(out)
