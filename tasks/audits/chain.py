"""The parts of a ledger that count: an unbroken chain, unchanged, each step in one part, of the segment that the
manifest records.

Invariant: reads the metadata of parts and never the samples in them; steps that no sound part covers
are named as a violation and in `Chain.unsound`, so that nothing is left out silently.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.store import Store
from storage.runs.ledger import LEDGER_SCHEMA, LedgerHeader, LedgerPart, walk_ledger
from storage.runs.rollbacks.positions import skipped_ranges
from storage.runs.run_state import RunState
from tasks.audits.segments import CountedSteps
from tasks.audits.violations import Violation, name_steps, of_steps


@dataclass(frozen=True)
class ChainPart:
    """A part whose bytes are those that were written."""

    part: LedgerPart
    path: Path
    header: LedgerHeader

    def __str__(self) -> str:
        return f"{self.part.key.rpartition('/')[2]} (segment {self.part.fence})"


@dataclass
class Chain:
    """Sound parts, oldest first; what is wrong with the chain; and the steps whose samples cannot be looked at."""

    parts: list[ChainPart] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    unsound: list[range] = field(default_factory=list)

    def is_unsound(self, first_step: int, end_step: int) -> bool:
        """Whether one of the steps [first_step, end_step) cannot be looked at."""
        return any(gap.start < end_step and first_step < gap.stop for gap in self.unsound)

    def sound_ranges(self, end_step: int) -> list[range]:
        """The steps up to `end_step` of which each is in exactly one sound part, as ranges."""
        ranges, start = [], 0
        for gap in sorted(self.unsound, key=lambda gap: gap.start):
            ranges.append(range(start, min(gap.start, end_step)))
            start = max(start, gap.stop)
        return [steps for steps in [*ranges, range(start, end_step)] if steps]

    def report(self, kind: str, steps: range, message: str, is_unsound: bool = True) -> None:
        """Add a violation of these steps."""
        self.violations.append(of_steps(kind, steps.start, steps.stop, message))
        if is_unsound:
            self.unsound.append(steps)


def read_chain(store: Store, state: RunState, head: LedgerPart | None, end_step: int) -> Chain:
    """Walk the chain from `head`, which must cover the steps up to `end_step`, and check every part of it."""
    chain = Chain()
    oldest = _walk(store, head, chain)
    counted = CountedSteps(state)
    for link in chain.parts:
        _check_fence(chain, link, counted)
    _check_cover(chain, oldest, end_step)
    chain.parts = [link for link in chain.parts if _is_sound(chain, link, state)]
    return chain


def _walk(store: Store, head: LedgerPart | None, chain: Chain) -> int:
    """Collect the parts; the first step that the chain reaches back to."""
    expected = head
    try:
        for part, path, header in walk_ledger(store, head):
            chain.parts.append(ChainPart(part, path, header))
            expected = header.previous
    except (CorruptObjectError, ObjectUnreadableError) as error:
        assert expected is not None
        _report_broken(chain, expected, error)
        return expected.end_step
    finally:
        chain.parts.reverse()
    return 0


def _report_broken(chain: Chain, part: LedgerPart, error: CorruptObjectError | ObjectUnreadableError) -> None:
    """A part that was changed: its samples, and parts that only it vouches for, cannot be audited."""
    kind = "part_missing" if isinstance(error, ObjectUnreadableError) else "part_changed"
    message = f"The ledger's part of {name_steps(part.first_step, part.end_step)} cannot be used: {error}"
    if part.first_step > 0:
        message += f" Without it the parts of {name_steps(0, part.first_step)} cannot be checked."
    chain.violations.append(of_steps(kind, part.first_step, part.end_step, message))
    chain.unsound.append(range(0, part.end_step))


def _check_cover(chain: Chain, first_step: int, end_step: int) -> None:
    """Every step in exactly one part. One beyond `end_step` counts for no segment, and is named by that."""
    covered, before = first_step, "the beginning of the run"
    for link in chain.parts:
        part = link.part
        if part.first_step > covered:
            _report_gap(chain, range(covered, part.first_step), before, str(link))
        elif part.first_step < covered:
            _report_twice(chain, range(part.first_step, min(covered, part.end_step)), before, str(link))
        covered, before = max(covered, part.end_step), str(link)
    if covered < end_step:
        _report_gap(chain, range(covered, end_step), before, "the promoted checkpoint")


def _report_twice(chain: Chain, steps: range, before: str, after: str) -> None:
    is_stale = any(violation.kind == "stale" and steps.start in violation.steps for violation in chain.violations)
    if is_stale:
        chain.unsound.append(steps)  # named already, with the reason
        return
    message = f"Two parts count {name_steps(steps.start, steps.stop)}: {before} and {after}."
    chain.report("steps_twice", steps, message)


def _report_gap(chain: Chain, steps: range, before: str, after: str) -> None:
    named = name_steps(steps.start, steps.stop)
    message = f"No part has {named}: there is nothing between {before} and {after}."
    chain.report("steps_missing", steps, message)


def _check_fence(chain: Chain, link: ChainPart, counted: CountedSteps) -> None:
    """A part may only cover steps that the manifest counts for its segment."""
    part = link.part
    allowed = counted.of(part.fence)
    steps = range(part.first_step, part.end_step)
    if allowed is None:
        chain.report("stale", steps, f"{link} counts, but the manifest knows no such segment.", False)
        return
    before = range(steps.start, min(steps.stop, allowed.start))
    after = range(max(steps.start, allowed.stop), steps.stop)
    for stale in filter(None, (before, after)):
        named, why = name_steps(stale.start, stale.stop), counted.describe(part.fence)
        message = f"{link} counts {named}, which the manifest does not count for segment {part.fence}: {why}"
        chain.report("stale", stale, message, False)


def _is_sound(chain: Chain, link: ChainPart, state: RunState) -> bool:
    """Whether the part is what its name states, of this run and data set, and a table that can be read."""
    part, header = link.part, link.header
    steps = range(part.first_step, part.end_step)
    wrong = [
        f"{name} is {found!r}, expected {expected!r}"
        for name, found, expected in (
            ("run", header.run, state.run),
            ("fence", header.fence, part.fence),
            ("first_step", header.first_step, part.first_step),
            ("end_step", header.end_step, part.end_step),
            ("skipped", header.skipped, skipped_ranges(part.first_step, part.end_step, state.rollbacks)),
        )
        if found != expected
    ]
    if wrong:
        chain.report("header", steps, f"The header of {link} does not match: {'; '.join(wrong)}.")
    elif header.dataset_digest != state.dataset_digest:
        chain.report(
            "dataset",
            steps,
            f"{link} is the ledger of another data set: {header.dataset_digest[:16]}..., the run has "
            f"{state.dataset_digest[:16]}.... Its {name_steps(steps.start, steps.stop)} cannot be checked "
            "against this run.",
        )
    elif not pq.read_schema(link.path).equals(LEDGER_SCHEMA):
        chain.report("header", steps, f"{link} does not have the columns of a ledger.")
    else:
        return True
    return False
