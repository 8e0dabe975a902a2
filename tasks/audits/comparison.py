"""A ledger's samples held against what is due: step by step, and counted epoch by epoch.

Invariant: every step of a sound part is looked at. Samples are also counted without regard to the order, so that an
order that is itself wrong does not pass.
"""

import dataclasses
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from tasks.audits.chain import Chain
from tasks.audits.content import LedgerContent
from tasks.audits.epoch_uses import EpochCount, EpochUses
from tasks.audits.expectation import Expectation
from tasks.audits.steps import Deviation, Facts, compare_step, describe_step
from tasks.audits.violations import MAX_NAMED, Violation, name_sample
from tasks.data.progress import OnProgress

# What is looked at in one chunk: about a hundred MB. Larger chunks take no less time.
SPAN_SAMPLES = 250_000


class Comparison:
    """The comparison of the steps before `end_step`. What it counts and finds stands in its public attributes."""

    def __init__(
        self,
        chain: Chain,
        content: LedgerContent,
        expectation: Expectation,
        end_step: int,
        on_progress: OnProgress | None,
    ) -> None:
        self.num_steps = self.num_microbatches = self.num_samples = 0
        self.epochs: list[EpochCount] = []
        self.violations: list[Violation] = []
        self.num_unnamed = 0
        self._chain = chain
        self._content = content
        self._expectation = expectation
        self._end_step = end_step
        self._on_progress = on_progress
        self._deviating = array("q")  # in rising order: as many as the run has steps, if all are wrong

    def run(self) -> None:
        """Look at everything."""
        self.violations += [self._with_samples(violation) for violation in self._chain.violations]
        for link, steps in self._content.find_strays():
            message = f"{link} has steps that lie outside of it: {', '.join(map(str, steps))}."
            self.violations.append(self._with_samples(Violation("strays", tuple(steps), message)))
        self._compare_steps()
        self._count_epochs()

    def _compare_steps(self) -> None:
        """Compare every step with what is due, a span of steps at a time."""
        deviations: list[Deviation] = []
        for steps in self._spans():
            self._content.load(steps)
            num_microbatches, num_samples = self._content.count_loaded()
            self.num_steps += len(steps)
            self.num_microbatches += num_microbatches
            self.num_samples += num_samples
            wrong_ids = self._content.find_wrong_ids()
            for step in sorted({*self._content.find_deviating(), *wrong_ids}):
                self._deviating.append(step)
                if len(deviations) < MAX_NAMED:
                    found, due = self._content.microbatches_of(step)
                    deviations.append(compare_step(step, found, due, wrong_ids.get(step, []), self._expectation))
            self._report("samples", steps.stop / self._end_step)
        self.num_unnamed = len(self._deviating) - len(deviations)
        facts = self._find_facts(deviations)
        self.violations += [describe_step(deviation, facts) for deviation in deviations]

    def _count_epochs(self) -> None:
        """Count how often each sample was used, whatever its order."""
        num_rows = self._expectation.num_rows
        num_epochs = -(-self._expectation.end_position(self._end_step) // num_rows)
        at_once = max(1, SPAN_SAMPLES // num_rows)
        for first in range(0, num_epochs, at_once):
            end = min(first + at_once, num_epochs)
            counts = self._count_uses(range(first, end))
            self.epochs += counts
            for count in counts:
                self._check_epoch(count)
            self._report("epochs", end / num_epochs)

    def _count_uses(self, epochs: range) -> list[EpochCount]:
        """How often rows were used in these epochs, a span of steps at a time."""
        uses = EpochUses(epochs, self._expectation.num_rows)
        for steps in self._chunks(self._steps_of(epochs.start, epochs.stop)):
            rows, used_for = self._content.find_all_uses(steps)
            uses.add(used_for, rows)
        return uses.counts()

    def _check_epoch(self, count: EpochCount) -> None:
        """Report samples used twice or not at all, unless a step that was named already is why."""
        steps = self._steps_of(count.epoch, count.epoch + 1)
        if self._chain.is_unsound(steps.start, steps.stop) or self._deviates_in(steps):
            return
        if count.num_samples > count.num_rows:
            rows = self._content.find_repeated(count.epoch, steps, MAX_NAMED)
            self._report_rows("repeated", f"used more than once in epoch {count.epoch}", rows)
        is_over = self._expectation.end_position(self._end_step) >= (count.epoch + 1) * self._expectation.num_rows
        skipped = self._expectation.skipped_rows(count.epoch, self._end_step)
        if is_over and count.num_rows + len(skipped) < self._expectation.num_rows:
            rows = self._content.find_unused(count.epoch, steps, skipped.tolist(), MAX_NAMED)
            self._report_rows("skipped", f"not used in epoch {count.epoch}", rows)

    def _deviates_in(self, steps: range) -> bool:
        first = bisect_left(self._deviating, steps.start)
        return first < len(self._deviating) and self._deviating[first] < steps.stop

    def _report_rows(self, kind: str, what: str, rows: list[int]) -> None:
        ids = self._content.samples.find_ids(rows)
        named = ", ".join(name_sample(row, ids.get(row)) for row in rows)
        message = f"The order itself is wrong: {what}: {named}."
        self.violations.append(Violation(kind, (), message, tuple((row, ids.get(row)) for row in rows)))

    def _find_facts(self, deviations: list[Deviation]) -> Facts:
        """What the rest of the ledger records about the samples of these steps."""
        uses = [use for deviation in deviations for use in [*deviation.extra, *deviation.lacking]]
        epochs = [epoch for _, epoch in uses]
        steps = self._steps_of(min(epochs), max(epochs) + 1) if epochs else range(0)
        return Facts(
            ids=self._content.samples.find_ids([row for deviation in deviations for row in deviation.rows]),
            uses=self._content.find_uses(sorted({row for row, _ in uses}), steps),
            lacking={use: deviation.step for deviation in deviations for use in deviation.lacking},
        )

    def _with_samples(self, violation: Violation) -> Violation:
        """The same, with the first samples that are due at its steps."""
        batches = (self._expectation.epochs(step)[0].tolist() for step in violation.steps)
        rows = list(itertools.islice(itertools.chain.from_iterable(batches), MAX_NAMED))
        ids = self._content.samples.find_ids(rows)
        return dataclasses.replace(violation, samples=tuple((row, ids.get(row)) for row in rows))

    def _spans(self) -> Iterator[range]:
        """All sound steps, in chunks that fit into memory."""
        for steps in self._chain.sound_ranges(self._end_step):
            yield from self._chunks(steps)

    def _chunks(self, steps: range) -> Iterator[range]:
        size = max(1, SPAN_SAMPLES // self._expectation.batch_size)
        for start in range(steps.start, steps.stop, size):
            yield range(start, min(start + size, steps.stop))

    def _steps_of(self, first_epoch: int, end_epoch: int) -> range:
        return self._expectation.steps_of(first_epoch, end_epoch, self._end_step)

    def _report(self, phase: str, share: float) -> None:
        if self._on_progress is not None:
            self._on_progress(phase, share)
