"""What the first rank reports while it works, as lines of JSON in a local file that the segment task follows.

Invariant: a report never makes training wait, neither for a GPU nor for a disk: it repeats the last loss that was read
for the loss curve anyway, at most twice a second. And training does not end because one cannot be written.
"""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from storage.runs.run_state import Throughput, ValidationFigures
from training.metrics.report_file import ReportFile
from training.rank_status import Phase
from training.world import World

SECONDS_BETWEEN_REPORTS = 0.5
RECENT_STEPS = 100


class CheckpointReport(BaseModel):
    """A checkpoint, by the key of its folder, that was just completed."""

    path: str
    step: int


class Report(BaseModel):
    """One line of the progress file. `note` is for people, `alarm` for the person on call: a save that failed.

    `longest_step_seconds` is that of the last RECENT_STEPS steps. `phases` are the seconds per phase so far: of ranks
    that are killed no more is known. `validation` is the last one of this segment. The first rank of a later `view`
    may be on another machine.
    """

    phase: str
    step: int
    loss: float | None = None
    throughput: Throughput | None = None
    longest_step_seconds: float | None = None
    phases: dict[str, float] = {}
    checkpoint: CheckpointReport | None = None
    note: str | None = None
    alarm: str | None = None
    validation: ValidationFigures | None = None  # the last one so far
    view: int = 0


@dataclass
class _Work:
    """What was done since the ranks began."""

    steps: int = 0
    tokens: int = 0
    waited_seconds: float = 0.0

    def throughput_since(self, before: "_Work", seconds: float, batch_size: int) -> Throughput | None:
        """The throughput of what came after `before`, in so many seconds; None if no step did."""
        steps = self.steps - before.steps
        if steps == 0 or seconds <= 0:
            return None
        return Throughput(
            samples_per_second=round(steps * batch_size / seconds, 3),
            tokens_per_second=round((self.tokens - before.tokens) / seconds, 3),
            input_wait_fraction=round(min(1.0, (self.waited_seconds - before.waited_seconds) / seconds), 6),
        )


class Reporter:
    """Writes reports and adds up the seconds spent in each phase."""

    def __init__(self, path: Path, world: World, batch_size: int, age_seconds: float = 0.0) -> None:
        """`age_seconds` have been spent already, on loading libraries, before a report was possible."""
        self.seconds: dict[str, float] = {}
        self.rank_status = world.rank_status
        self.step = 0
        self.loss: float | None = None
        self._path, self._world = path, world
        self._file = ReportFile(path) if world.is_first else None
        self._is_closed = False
        self._batch_size = batch_size
        self._phase = "start"
        self._phase_began = time.monotonic() - age_seconds
        self._last_report = 0.0
        self._work = _Work()
        self._throughput: Throughput | None = None
        self._validation: ValidationFigures | None = None
        self._measured_from = (_Work(), self._phase_began)
        self._recent_steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._last_step_ended = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to `name`; afterwards the phase of before goes on."""
        before = self._enter(name)
        self._measured_from = (copy(self._work), time.monotonic())
        self._report()
        try:
            with self.rank_status.at(Phase(name)):
                yield
        finally:
            self._enter(before)
            self._last_step_ended = time.monotonic()
            self._measured_from = (copy(self._work), self._last_step_ended)

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Count the time of the block as time in which there are no samples to train on."""
        began = time.monotonic()
        with self.rank_status.at(Phase.INPUT):
            yield
        self._work.waited_seconds += time.monotonic() - began

    def stepped(self, step: int, loss: float | None, num_tokens: int, num_microbatches: int) -> None:
        """`step` steps are done, the last one with so many tokens, of which this rank computed so many microbatches.

        `loss` is the last point of the loss curve.
        """
        self.step, self.loss = step, loss
        self.rank_status.step = step
        self.rank_status.microbatches += num_microbatches
        self._work.steps += 1
        self._work.tokens += num_tokens
        now = time.monotonic()
        self._recent_steps.append(now - self._last_step_ended)
        self._last_step_ended = now
        if now - self._last_report >= SECONDS_BETWEEN_REPORTS:
            before, since = self._measured_from
            self._throughput = self._work.throughput_since(before, now - since, self._batch_size)
            self._measured_from = (copy(self._work), now)
            self._report()

    def throughput(self) -> Throughput | None:
        """The throughput of all steps made here, over the time of training that has ended; None if none was."""
        return self._work.throughput_since(_Work(), self.seconds.get("train", 0.0), self._batch_size)

    def alive(self) -> None:
        """Report that the rank works, though no step is made."""
        if time.monotonic() - self._last_report >= SECONDS_BETWEEN_REPORTS:
            self._report()

    def checkpointed(self, path: str, step: int) -> None:
        """Report at once that a checkpoint is complete."""
        self._report(checkpoint=CheckpointReport(path=path, step=step))

    def validated(self, figures: ValidationFigures) -> None:
        """What a validation showed: for people, and in the log."""
        self._validation = figures
        if self._world.is_first:
            words = figures.describe()
            print(f"{words[0].upper()}{words[1:]}.", flush=True)
        self._report()

    def noted(self, note: str) -> None:
        """Something that people should know."""
        self._report(note=note)

    def save_failed(self, alarm: str) -> None:
        """A save came to nothing, time after time, and training goes on without it."""
        self._report(alarm=alarm)

    def close(self) -> dict[str, float]:
        """End the last phase; seconds per phase."""
        self._enter(self._phase)
        self._report()
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: what a rank has to know that may come to report."""
        validation = self._validation
        return {
            "phases": self._phases_so_far(),
            "work": asdict(self._work),
            "loss": self.loss,
            "validation": None if validation is None else validation.model_dump(mode="json"),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Report from here on as the rank would have that gave this."""
        self.seconds, self._phase_began = dict(state["phases"]), time.monotonic()
        self._work, self.loss = _Work(**state["work"]), state["loss"]
        validation = state["validation"]
        self._validation = None if validation is None else ValidationFigures.model_validate(validation)

    def _phases_so_far(self) -> dict[str, float]:
        going_on = self.seconds.get(self._phase, 0.0) + time.monotonic() - self._phase_began
        return {name: round(seconds, 3) for name, seconds in {**self.seconds, self._phase: going_on}.items()}

    def _enter(self, phase: str) -> str:
        now = time.monotonic()
        before = self._phase
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._phase_began
        self._phase, self._phase_began = phase, now
        return before

    def _report(
        self, checkpoint: CheckpointReport | None = None, note: str | None = None, alarm: str | None = None
    ) -> None:
        self._last_report = time.monotonic()
        if not self._world.is_first or self._is_closed:
            return
        if self._file is None:  # the one that was the first is gone
            with suppress(OSError):
                self._file = ReportFile(self._path)
        report = Report(
            phase=self._phase,
            step=self.step,
            loss=self.loss,
            throughput=self._throughput,
            longest_step_seconds=max(self._recent_steps, default=None),
            phases=self._phases_so_far(),
            checkpoint=checkpoint,
            note=note,
            alarm=alarm,
            validation=self._validation,
            view=self._world.view,
        )
        has_event = not (checkpoint is None and note is None and alarm is None)
        if self._file is not None:
            self._file.write(json.dumps(report.model_dump()), must_come=has_event)
