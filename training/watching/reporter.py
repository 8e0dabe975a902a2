"""What the first rank reports while it works, as lines of JSON in a local file that the segment task follows.

Invariant: a report never makes training wait, neither for a GPU nor for a disk: it repeats the last loss that was read
for the loss curve anyway, at most twice a second.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from training.world import World

SECONDS_BETWEEN_REPORTS = 0.5


class CheckpointReport(BaseModel):
    """A checkpoint, by the key of its folder, that was just completed, or was found to be damaged and why."""

    path: str
    step: int
    damage: str | None = None


class Report(BaseModel):
    """One line. `note` is for people, `alarm` for whoever is on call: a save that came to nothing."""

    phase: str
    step: int
    loss: float | None = None
    samples_per_second: float | None = None
    checkpoint: CheckpointReport | None = None
    note: str | None = None
    alarm: str | None = None


class Reporter:
    """Writes reports and adds up the seconds spent in each phase."""

    def __init__(self, path: Path, world: World, batch_size: int, age_seconds: float = 0.0) -> None:
        """`age_seconds` have been spent already, on loading libraries, before somebody could report."""
        self.seconds: dict[str, float] = {}
        self.step = 0
        self.loss: float | None = None
        self._file = path.open("a", encoding="utf-8") if world.is_first else None
        self._batch_size = batch_size
        self._phase = "start"
        self._phase_began = time.monotonic() - age_seconds
        self._last_report = 0.0
        self._rate: float | None = None
        self._rate_from = (0, self._phase_began)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to `name`; afterwards the phase of before goes on."""
        before = self._enter(name)
        self._rate_from = (self.step, time.monotonic())  # a step that was restored was not made in this time
        self._report()
        try:
            yield
        finally:
            self._enter(before)
            self._rate_from = (self.step, time.monotonic())

    def stepped(self, step: int, loss: float | None) -> None:
        """`step` steps are done; `loss` is the last point of the loss curve."""
        self.step, self.loss = step, loss
        now = time.monotonic()
        if now - self._last_report >= SECONDS_BETWEEN_REPORTS:
            from_step, from_time = self._rate_from
            if step > from_step:
                self._rate = (step - from_step) * self._batch_size / (now - from_time)
            self._rate_from = (step, now)
            self._report()

    def alive(self) -> None:
        """Whoever watches should know that something goes on, though no step is made."""
        if time.monotonic() - self._last_report >= SECONDS_BETWEEN_REPORTS:
            self._report()

    def checkpointed(self, path: str, step: int) -> None:
        """A checkpoint is complete: say so at once."""
        self._report(checkpoint=CheckpointReport(path=path, step=step))

    def found_damaged(self, path: str, step: int, damage: str) -> None:
        """A checkpoint to start from was not as it was written."""
        self._report(checkpoint=CheckpointReport(path=path, step=step, damage=damage))

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
        if self._file is not None:
            self._file.close()
            self._file = None
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}

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
        if self._file is None:
            return
        report = Report(
            phase=self._phase,
            step=self.step,
            loss=self.loss,
            samples_per_second=self._rate,
            checkpoint=checkpoint,
            note=note,
            alarm=alarm,
        )
        self._file.write(json.dumps(report.model_dump()) + "\n")
        self._file.flush()
