"""All runs for those who look: as one page in a file, and as figures for Prometheus, read again and again.

Invariant: a scrape reads no store, and the page is replaced at once. What goes wrong is an error for the caller.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from storage.objects.store import Store
from tasks.monitoring.all_runs_figures import AllRunsFigures
from tasks.reporting.all_runs import describe_runs, read_stores
from tasks.reporting.all_runs_page import render_runs_page, write_runs_page

# A browser that shows the page loads it again after so long.
REFRESH_SECONDS = 60


class AllRuns:
    """What is shown of all runs: the page in the file `page`, if one is given, and `figures`."""

    def __init__(self, page: Path | None) -> None:
        self.figures = AllRunsFigures()
        self._page = page

    def show(self, stores: Sequence[Store]) -> None:
        """Read all runs of the stores, and show them. Raises `ConfigurationError` where the page cannot be written."""
        found = describe_runs(read_stores(*stores))
        self.figures.show(found)
        if self._page is not None:
            write_runs_page(self._page, render_runs_page(found, time.time(), REFRESH_SECONDS))
