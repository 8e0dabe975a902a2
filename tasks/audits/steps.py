"""One step whose samples are not the ones that are due: what happened to them, in words.

Invariant: reports only what the ledger and the pure functions show: which samples stand where others are due, and at
which other steps of the epoch they were used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.audits.expectation import Expectation
from tasks.audits.violations import MAX_NAMED, Violation, name_sample
from tasks.text import MAX_LISTED, listed

Microbatches = Sequence[tuple[int, Sequence[int]]]
Use = tuple[int, int]  # a row, and the epoch for which it was used or is due
# The worst first: the others are often its consequence.
SAMPLE_KINDS = ("foreign", "repeated", "skipped", "moved")


@dataclass(frozen=True)
class Deviation:
    """A step's microbatches as found and as due; samples that it has too often, lacks, or has elsewhere."""

    step: int
    found: Microbatches
    due: Microbatches
    wrong_ids: list[int]  # microbatches whose ids are not those of their rows
    extra: list[Use]
    lacking: list[Use]
    displaced: list[tuple[int, int, int]]  # row, microbatch in which it is, microbatch in which it is due

    @property
    def rows(self) -> set[int]:
        """Every row that may have to be named."""
        moved = {row for row, _ in self.extra} | {row for row, _ in self.lacking}
        return moved | {row for row, *_ in self.displaced} | set(self.unread_rows)

    @property
    def unread_rows(self) -> list[int]:
        """Rows of the microbatches with wrong ids."""
        return [row for microbatch, rows in self.found if microbatch in self.wrong_ids for row in rows]


@dataclass(frozen=True)
class Facts:
    """What is known about rows: ids, the steps that used them for an epoch, the step that lacks them."""

    ids: Mapping[int, str]
    uses: Mapping[Use, Sequence[int]]
    lacking: Mapping[Use, int]

    def name(self, row: int) -> str:
        return name_sample(row, self.ids.get(row))

    def steps_of(self, uses: Iterable[Use]) -> set[int]:
        """Every step that has to do with these uses."""
        uses = list(uses)
        return {step for use in uses for step in self.uses.get(use, ())} | {
            self.lacking[use] for use in uses if use in self.lacking
        }


def compare_step(
    step: int, found: Microbatches, due: Microbatches, wrong_ids: list[int], expectation: Expectation
) -> Deviation:
    """Work out what happened to the samples of a step."""
    there, wanted = _count(found), _count(due)
    rows, epochs = expectation.epochs(step)
    lacking: list[Use] = []
    for row in wanted - there:
        # A batch that straddles epochs may want a row for two of them: what is there counts for the first.
        lacking += [(row, int(epoch)) for epoch in epochs[rows == row][there[row] :]]
    extra = [(row, expectation.epoch_of(step)) for row in (there - wanted).elements()]
    displaced = _find_displaced(found, due) if there == wanted else []
    return Deviation(step, found, due, wrong_ids, extra, lacking, displaced)


def describe_step(deviation: Deviation, facts: Facts) -> Violation:
    """The step's one violation."""
    there, wanted = _count(deviation.found), _count(deviation.due)
    times = there.total() // wanted.total()
    if not deviation.found:
        rows = [row for row, _ in deviation.lacking]
        return _violation("step_missing", deviation, rows, "it is not in the ledger.", facts)
    if times > 1 and there == Counter({row: times * uses for row, uses in wanted.items()}):
        text = f"it is in the ledger {times} times."
        return _violation("step_repeated", deviation, list(there), text, facts)
    if there != wanted:
        return _describe_samples(deviation, facts)
    if deviation.displaced:
        return _describe_order(deviation, facts)
    if deviation.wrong_ids:
        return _violation("ids", deviation, deviation.unread_rows, "", facts)
    return _violation("form", deviation, [], "its microbatches are not recorded as one row each.", facts)


def _describe_samples(deviation: Deviation, facts: Facts) -> Violation:
    """Samples that should not be there, and those that should."""
    words = {use: _describe_extra(deviation.step, use, facts) for use in deviation.extra}
    words |= {use: _describe_lacking(use, facts) for use in deviation.lacking}
    uses = sorted(words, key=lambda use: SAMPLE_KINDS.index(words[use][0]))
    text = _join([words[use][1] for use in uses])
    rows, others = [row for row, _ in uses], facts.steps_of(uses[:MAX_NAMED])
    return _violation(words[uses[0]][0], deviation, rows, text, facts, others)


def _describe_extra(step: int, use: Use, facts: Facts) -> tuple[str, str]:
    row, epoch = use
    steps = facts.uses.get(use, [step])
    if row not in facts.ids:
        return "foreign", f"{facts.name(row)} was used here"
    if len(steps) > 1:
        return "repeated", f"{facts.name(row)} was used {len(steps)} times in epoch {epoch}, at {_list_steps(steps)}"
    where = f"is due at step {facts.lacking[use]:,}" if use in facts.lacking else "is not due here"
    return "moved", f"{facts.name(row)} was used here and {where}"


def _describe_lacking(use: Use, facts: Facts) -> tuple[str, str]:
    row, epoch = use
    if use not in facts.uses:
        return "skipped", f"{facts.name(row)} is due here and was not used in epoch {epoch}"
    return "moved", f"{facts.name(row)} is due here and was used at {_list_steps(facts.uses[use])}"


def _describe_order(deviation: Deviation, facts: Facts) -> Violation:
    """The right samples in another order."""
    between = [(row, found, due) for row, found, due in deviation.displaced if found != due]
    if between:
        texts = [
            f"{facts.name(row)} is in microbatch {found} and is due in microbatch {due}" for row, found, due in between
        ]
        return _violation("between_microbatches", deviation, [row for row, *_ in between], _join(texts), facts)
    microbatches = listed(
        str(microbatch) for microbatch in sorted({microbatch for _, microbatch, _ in deviation.displaced})
    )
    rows = [row for row, *_ in deviation.displaced]
    text = f"in microbatch {microbatches} the order is another one: {listed(map(facts.name, rows))} changed positions."
    return _violation("within_microbatch", deviation, rows, text, facts)


def _violation(
    kind: str, deviation: Deviation, rows: Sequence[int], text: str, facts: Facts, others: Iterable[int] = ()
) -> Violation:
    sentences = [f"Step {deviation.step:,}: {text}"] if text else []
    if deviation.wrong_ids and kind != "foreign":  # a row that is not there has no id
        microbatches = listed(map(str, deviation.wrong_ids), MAX_NAMED)
        sentences.append(
            f"Step {deviation.step:,}, microbatch {microbatches}: the ids that were recorded are not those that the "
            "data set has for the rows. Other samples were read, or the data set was changed since."
        )
    return Violation(
        kind,
        tuple(sorted({deviation.step, *others})[:MAX_NAMED]),
        " ".join(sentences),
        tuple((row, facts.ids.get(row)) for row in list(dict.fromkeys(rows))[:MAX_NAMED]),
    )


def _count(microbatches: Microbatches) -> Counter[int]:
    return Counter(row for _, rows in microbatches for row in rows)


def _find_displaced(found: Microbatches, due: Microbatches) -> list[tuple[int, int, int]]:
    """Samples that stand in another microbatch, or at another position in their microbatch, than they should."""
    positions = [
        sorted((row, microbatch, position) for microbatch, rows in microbatches for position, row in enumerate(rows))
        for microbatches in (found, due)
    ]
    return [
        (row, microbatch, due[1])
        for (row, microbatch, position), due in zip(*positions, strict=True)
        if (microbatch, position) != due[1:]
    ]


def _join(texts: Sequence[str]) -> str:
    """Some of these half-sentences, and how many more there are."""
    more = [f"and {len(texts) - MAX_LISTED:,} more samples like these"] if len(texts) > MAX_LISTED else []
    return "; ".join([*texts[:MAX_LISTED], *more]) + "."


def _list_steps(steps: Sequence[int]) -> str:
    """'step 3 (2 times) and step 7'."""
    counts = Counter(steps)
    return listed(f"step {step:,}" + (f" ({times} times)" if times > 1 else "") for step, times in counts.items())
