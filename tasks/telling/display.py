"""What a person sees while something takes long: a live line in a terminal, a plain line now and then elsewhere.

Invariant: shows only what is reported anyway; nothing is asked of the ranks for its sake.
"""

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tasks.configuration import RunConfig
from tasks.telling.announce import announce
from tasks.telling.terminal import console
from training.watching.reporter import Report

SECONDS_BETWEEN_LINES = 30.0

PHASES = {"start": "starting", "restore": "restoring", "train": "training", "validate": "validating", "save": "saving"}
PREPARATION_PHASES = {
    "fingerprint": "hashing the source files",
    "check": "checking the contract",
    "tokenise": "tokenising",
    "shard": "writing shards",
}


class SegmentDisplay:
    """A context manager around one segment."""

    def __init__(self, config: RunConfig, first_step: int) -> None:
        self._total = config.train.steps
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._saved = f"{first_step:,}" if first_step else "none yet"
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]} samples/s"),
            TextColumn("saved {task.fields[saved]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task(
            PHASES["start"], total=self._total, completed=first_step, loss="-", rate="-", saved=self._saved
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, report: Report) -> None:
        """Take over one report."""
        loss = "-" if report.loss is None else f"{report.loss:.4f}"
        rate = "-" if report.samples_per_second is None else f"{report.samples_per_second:,.0f}"
        phase = PHASES.get(report.phase, report.phase)
        self._progress.update(self._bar, description=phase, completed=report.step, loss=loss, rate=rate)
        if not console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            announce(f"step {report.step:,}/{self._total:,}  loss {loss}  {rate} samples/s  saved {self._saved}")

    def promoted(self, step: int) -> None:
        """A checkpoint was validated and promoted."""
        self._saved = f"{step:,}"
        self._progress.update(self._bar, saved=self._saved)


class PreparationDisplay:
    """A context manager around the preparation of a data set; `show` takes a phase and the share of it that is done."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
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
            return
        self._phase = phase
        self._progress.reset(self._bar, total=1.0, description=PREPARATION_PHASES[phase])
        if phase != "fingerprint":  # that is done on every start, and mostly from memory
            announce(f"Preparing the data: {PREPARATION_PHASES[phase]}.")
