"""What a person sees while something takes long: a live line in a terminal, a plain line now and then elsewhere.

Invariant: shows only what is reported anyway; nothing is asked of the ranks for its sake.
"""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from storage.runs.run_state import CheckpointRecord, Throughput
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.console.terminal import console
from training.metrics.reporter import Report

SECONDS_BETWEEN_LINES = 30.0
SECONDS_WITHOUT_A_LINE = 5.0

PHASES = {"start": "starting", "restore": "restoring", "train": "training", "validate": "validating", "save": "saving"}
BEFORE_STEPS = ("start", "restore")
PREPARATION_PHASES = {
    "fingerprint": "hashing the source files",
    "read": "reading the source files",
    "check": "checking the contract",
    "learn": "choosing texts for the tokenizer",
    "tokenise": "tokenising",
    "assign": "assigning the rows",
    "shard": "writing shards",
}


class ProgressWithFigures(Progress):
    """A bar, and the figures of the task in lines of their own: no terminal is too narrow for all of them.

    The cursor stays behind the last, short line, where the ^C that the terminal adds to it begins no new one.
    """

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            for line in task.fields["lines"]:
                yield Text(line, no_wrap=True, overflow="ellipsis")


class SegmentDisplay:
    """A context manager around one segment."""

    def __init__(self, config: RunConfig, first_step: int) -> None:
        self._total = config.train.num_steps
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._saved = f"saved at step {first_step:,}" if first_step else "nothing saved yet"
        self._figures = self._speed = ""
        self._has_begun = False
        self._progress = ProgressWithFigures(*_bar_columns(), console=console, disable=not console.is_terminal,
                                         transient=True)  # fmt: skip
        self._bar = self._progress.add_task(PHASES["start"], total=self._total, completed=first_step, lines=[])

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, report: Report) -> None:
        """Take over one report."""
        phase = describe_phase(report)
        if report.phase in BEFORE_STEPS and not self._has_begun:
            self._progress.update(self._bar, description=phase)
            return
        if not self._has_begun:
            # The time left is estimated from the steps that are made, not from those that were restored.
            self._has_begun = True
            self._progress.reset(self._bar, total=self._total, completed=report.step, description=phase)
        self._figures, self._speed = describe_figures(report, self._total), describe_speed(report.throughput)
        self._progress.update(self._bar, description=phase, completed=report.step, lines=self._lines())
        if not console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            announce(f"{phase}: {', '.join(self._lines())}")

    def promoted(self, record: CheckpointRecord) -> None:
        """This checkpoint is the resume point now."""
        self.saved(record.step)

    def saved(self, step: int) -> None:
        """What was trained up to this step is safe."""
        self._saved = f"saved at step {step:,}"
        self._progress.update(self._bar, lines=self._lines())

    def _lines(self) -> list[str]:
        figures = ", ".join(filter(None, (self._figures, self._saved)))
        return [line for line in (figures, self._speed) if line]


class PreparationDisplay:
    """A context manager around the preparation of a data set; `show` takes a phase and the share of it that is done."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._announced: set[str] = set()
        self._begun = time.monotonic()
        self._progress = Progress(*_bar_columns(), console=console, disable=not console.is_terminal, transient=True)
        self._bar = self._progress.add_task(PREPARATION_PHASES["fingerprint"], total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, phase: str, share: float) -> None:
        """Take over one report."""
        if phase == self._phase:
            self._progress.update(self._bar, completed=share)
        else:
            self._phase = phase
            self._progress.reset(self._bar, total=1.0, description=PREPARATION_PHASES[phase])
        # Hashing is done on every start, and mostly from memory: it is a line only if it takes long.
        is_brief = phase == "fingerprint" and (share == 1.0 or time.monotonic() - self._begun < SECONDS_WITHOUT_A_LINE)
        if phase not in self._announced and not is_brief:
            self._announced.add(phase)
            announce(f"Preparing the data: {PREPARATION_PHASES[phase]}.")


def _bar_columns() -> tuple[ProgressColumn, ...]:
    return (
        SpinnerColumn(),
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left", markup=False),
    )


def describe_phase(report: Report) -> str:
    """'training'."""
    return PHASES.get(report.phase, report.phase)


def describe_figures(report: Report, total: int) -> str:
    """'step 1,200 of 5,000, loss 0.4321': what is known of it."""
    loss = "" if report.loss is None else f"loss {report.loss:.4f}"
    return ", ".join(filter(None, (f"step {report.step:,} of {total:,}", loss)))


def describe_speed(measured: Throughput | None) -> str:
    """'2,400 samples/s, 804,000 tokens/s, 0.3% of the time waiting for data', or nothing before it is known."""
    if measured is None:
        return ""
    return (
        f"{measured.samples_per_second:,.0f} samples/s, {measured.tokens_per_second:,.0f} tokens/s, "
        f"{measured.input_wait_fraction:.1%} of the time waiting for data"
    )
