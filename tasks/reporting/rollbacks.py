"""Words about rollbacks: in messages, in the status, in the report and by the audit.

Invariant: pure. Steps are counted from 1 where they are called by their number, as in the loss curve; "step n" of a
checkpoint is the state after so many steps.
"""

from collections.abc import Sequence

from storage.runs.rollbacks.positions import standing
from storage.runs.run_state import RollbackRecord


def describe_rollback(record: RollbackRecord) -> str:
    """What was done about one divergence, or on a user's request."""
    led = f"led to step {record.diverged_step:,}" if record.asked_by is None else "it had come to since then"
    text = (
        f"back to step {record.resume_step:,}, and on from there without the {record.num_skipped:,} samples that {led} "
        f"(positions {record.first_position:,} to {record.end_position - 1:,} of the order)"
    )
    if record.learning_rate_factor != 1:
        text += f", with {record.learning_rate_factor:g} times the scheduled learning rate"
    return f"{text}."


def describe_rollbacks(rollbacks: Sequence[RollbackRecord]) -> list[str]:
    """A line for each, oldest first: why, what was done, and whether it still stands."""
    kept = standing(rollbacks)
    return [
        f"{number}. {record.cause.strip()} So the run went {describe_rollback(record)}"
        + ("" if record in kept else " A later rollback went back at least as far, and replaced this one.")
        for number, record in enumerate(rollbacks, start=1)
    ]


def name_reasons(askers: Sequence[str | None]) -> str:
    """Why the run went back, in the words that a heading or a sentence begins with, by `asked_by` of the rollbacks."""
    if not any(askers):
        return "Training diverged, and the run was rolled back"
    return "The run was rolled back by hand" + ("" if all(askers) else ", and because training diverged,")


def count_skipped(rollbacks: Sequence[RollbackRecord]) -> int:
    """Samples of the order that the run leaves out."""
    return sum(record.num_skipped for record in standing(rollbacks))
