"""All runs, as the reconciler keeps them: a page that is replaced, and figures that a scrape finds."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from tasks.reconciling.all_runs import REFRESH_SECONDS, AllRuns
from tests.helpers.reconciled import put_run


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    put_run(made, "done")
    return made


def test_the_page_and_the_figures_are_of_what_was_read_last(store: LocalStore, tmp_path: Path) -> None:
    shown = AllRuns(tmp_path / "runs.html")
    registry = CollectorRegistry()
    registry.register(shown.figures)
    shown.show([store])
    page = (tmp_path / "runs.html").read_text()
    assert "done" in page and f'http-equiv="refresh" content="{REFRESH_SECONDS}"' in page
    labels = {"run": "done", "store": store.address}
    assert registry.get_sample_value("holdfast_run_complete", labels) == 1
    put_run(store, "another")
    shown.show([store])
    assert "another" in (tmp_path / "runs.html").read_text()
    assert registry.get_sample_value("holdfast_store_runs", {"store": store.address}) == 2


def test_without_a_page_there_are_figures_and_a_page_that_cannot_be_written_is_an_error(
    store: LocalStore, tmp_path: Path
) -> None:
    shown = AllRuns(None)
    shown.show([store])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with pytest.raises(ConfigurationError, match="Cannot write the page"):
        AllRuns(tmp_path / "missing" / "runs.html").show([store])
