"""A segment as it trains, shown on its flow run's page in Prefect; and the report, written again as the run gets on.

Invariant: training does not wait for it. A thread of the supervising process does it all, from what is reported anyway
and from the store; a server or a store that does not answer is asked again the next time.
"""

import time
from collections.abc import Mapping
from typing import Any

from storage.datasets import load_dataset
from storage.errors import HoldfastError
from storage.lazy_imports import lazy_imports
from storage.objects.history import HistoryContent, HistoryPart
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.background import BackgroundThread
from tasks.configuration.run import RunConfig
from tasks.console.announce import warn
from tasks.console.display import describe_figures, describe_phase, describe_speed
from tasks.prefect_bridge.server import LiveArtifact
from tasks.reporting.run_summary import summarise
from tasks.reporting.written import read_history, report_address, write_report
from tasks.run_paths import RunPaths
from tasks.text import duration
from training.metrics.reporter import Report

# It loads Matplotlib, as the report does.
with lazy_imports():
    import tasks.reporting.curves as curves

PROGRESS_SECONDS = 10.0
# Drawing takes a second of a processor. There is a page before the first promotion, too.
PAGE_SECONDS, FIRST_PAGE_SECONDS = 60.0, 20.0


class LivePicture(BackgroundThread):
    """A context manager around one segment."""

    def __init__(self, config: RunConfig, run_paths: RunPaths) -> None:
        super().__init__("live picture")
        self._config = config
        self._run_paths = run_paths
        self._report: Report | None = None
        self._has_got_on = True  # a segment has begun
        self._page_at = time.monotonic() + FIRST_PAGE_SECONDS
        self._parts: dict[HistoryPart, HistoryContent] = {}  # of the curves, which were read for an earlier page
        self._progress = LiveArtifact(f"progress-{config.run}", "progress")
        self._summary = LiveArtifact(f"run-{config.run}", "markdown")
        self._pictures = {name: LiveArtifact(f"{name}-{config.run}", "image") for name in ("loss", "metrics")}

    def show(self, report: Report) -> None:
        """Take over one report."""
        self._report = report

    def promoted(self, _record: CheckpointRecord) -> None:
        """The page is to be made anew."""
        self._has_got_on = True

    def _accompany(self) -> None:
        while not self._is_over.wait(PROGRESS_SECONDS):
            self._send_progress()
            if self._has_got_on and time.monotonic() >= self._page_at:
                self._has_got_on = False
                self._page_at = time.monotonic() + PAGE_SECONDS
                self._make_page()

    def _send_progress(self) -> None:
        report, total = self._report, self._config.train.num_steps
        if report is not None:
            self._progress.update(100 * report.step / total, _describe(report, self._config))

    def _make_page(self) -> None:
        try:
            state = self._run_paths.manifest.load_head().state
            store, history = self._run_paths.store, read_history(self._run_paths.store, state, self._parts)
            write_report(store, state, load_dataset(store, *_dataset_of(state)), history)
            self._send_page(state, history)
        except HoldfastError as error:
            warn(f"The report could not be written; the next promotion, or the end of the flow, tries again: {error}")

    def _send_page(self, state: RunState, history: Mapping[str, Any]) -> None:
        address = report_address(self._run_paths.store, state.run)
        self._summary.update(summarise(state, self._config, address, history))
        charts = {
            "loss": curves.draw_training(history, state.segments),
            "metrics": curves.draw_validation(history),
        }
        for name, chart in charts.items():
            if chart is not None:
                self._pictures[name].update(chart.uri_on_paper, chart.alt)


def _dataset_of(state: RunState) -> tuple[str, str | None]:
    return state.dataset_digest, state.dataset_sha256


def _describe(report: Report, config: RunConfig) -> str:
    """'training, step 1,200 of 5,000, loss 0.4321, 2,400 samples/s, ..., about 3 h 12 min left'."""
    parts = [
        describe_phase(report),
        describe_figures(report, config.train.num_steps),
        describe_speed(report.throughput),
    ]
    if report.throughput is not None and report.throughput.samples_per_second > 0:
        samples = (config.train.num_steps - report.step) * config.train.batch_size
        parts.append(f"about {duration(samples / report.throughput.samples_per_second)} left")
    return ", ".join(filter(None, parts))
