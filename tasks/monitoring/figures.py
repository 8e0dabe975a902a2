"""The figures of a segment, as Prometheus reads them.

Invariant: they are what the supervisor has anyway, from the ranks' reports and the manifest; nothing is asked of
any process for their sake. A figure that is not known yet is left out. Names follow Prometheus' conventions, and each
has the labels `run` and `store`.
"""

import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from storage.runs.run_state import CheckpointRecord, RunState
from training.metrics.reporter import Report

LABELS = ("run", "store")
# Fields of `Throughput`.
SPEED = {
    "samples_per_second": ("samples_per_second", "Samples trained a second."),
    "tokens_per_second": ("tokens_per_second", "Tokens trained a second, without padding."),
    "input_wait_fraction": ("input_wait_ratio", "Share of the time spent waiting for samples, 0 to 1."),
}
PHASES = ("start", "restore", "train", "validate", "save")


class SegmentFigures(Collector):
    """Of one segment, from the state with which it began. Read by threads of a server while reports come in."""

    def __init__(self, store_address: str, state: RunState, num_steps: int) -> None:
        self._labels = (state.run, store_address)
        self._state = state
        self._num_steps = num_steps
        self._promoted = state.promoted
        self._first_step = state.lease.first_step if state.lease else 0
        self._num_ranks = state.lease.world_size if state.lease else 0
        self._report: Report | None = None
        self._heard_at = time.monotonic()
        self._saves = self._failed_saves = 0

    def heard(self, report: Report) -> None:
        """The ranks reported something."""
        self._report, self._heard_at = report, time.monotonic()
        self._saves += report.checkpoint is not None
        self._failed_saves += report.alarm is not None

    def promoted(self, record: CheckpointRecord) -> None:
        """A checkpoint became the resume point."""
        self._promoted = record

    def collect(self) -> Iterator[Metric]:
        """All figures as they are now."""
        yield from self._of_training()
        yield from self._of_checkpoints()
        yield from self._of_run()

    def _of_training(self) -> Iterator[Metric]:
        report = self._report
        yield self._gauge(
            "step", "Steps made, as the ranks reported last.", report.step if report else self._first_step
        )
        yield self._gauge("planned_steps", "Steps of the whole run, train.steps.", self._num_steps)
        yield self._gauge("loss", "Loss of the last point of the loss curve.", report.loss if report else None)
        speed = report.throughput.model_dump() if report and report.throughput else {}
        for field, (name, documentation) in SPEED.items():
            yield self._gauge(name, documentation, speed.get(field))
        yield self._gauge(
            "report_age_seconds", "Since the ranks reported last; segment.hang_seconds is the most.",
            time.monotonic() - self._heard_at,
        )  # fmt: skip
        yield self._gauge("ranks", "Processes that train.", self._num_ranks)
        yield self._phase(report.phase if report else PHASES[0])

    def _of_checkpoints(self) -> Iterator[Metric]:
        point = self._promoted
        yield self._gauge("promoted_step", "Step of the resume point.", point.step if point else 0)
        yield self._gauge(
            "promotion_age_seconds", "Since the resume point was promoted; nothing before the first promotion.",
            max(0.0, time.time() - point.promoted_at) if point else None,
        )  # fmt: skip
        yield self._counter("saves", "Checkpoints that the ranks completed in this segment.", self._saves)
        yield self._counter("failed_saves", "Saves of this segment that failed.", self._failed_saves)

    def _of_run(self) -> Iterator[Metric]:
        ended = Counter(segment.outcome for segment in self._state.segments)
        segments = CounterMetricFamily(
            "holdfast_segments", "Segments of the run that ended, by outcome.", labels=(*LABELS, "outcome")
        )
        for outcome, count in sorted(ended.items()):
            segments.add_metric((*self._labels, outcome), count)
        yield segments
        yield self._gauge("steps_lost", "Steps known to have been trained again, or to be.", self._state.steps_lost)
        yield self._counter("rollbacks", "Rollbacks, after divergence and by hand.", len(self._state.rollbacks))

    def _phase(self, current: str) -> Metric:
        family = GaugeMetricFamily(
            "holdfast_phase", "What the ranks are at: 1 for that phase, 0 for others.", labels=(*LABELS, "phase")
        )
        for phase in dict.fromkeys((*PHASES, current)):
            family.add_metric((*self._labels, phase), float(phase == current))
        return family

    def _gauge(self, name: str, documentation: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(f"holdfast_{name}", documentation, labels=LABELS)
        if value is not None:
            family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(f"holdfast_{name}", documentation, labels=LABELS)
        family.add_metric(self._labels, value)
        return family
