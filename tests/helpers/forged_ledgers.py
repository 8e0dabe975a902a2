"""Ledgers of which one thing is not true, and what an audit has to find in them."""

from collections.abc import Callable

from tests.helpers.ledgers import MICROBATCHES, LedgerRun

# Step 12 has the last 12 samples of the first epoch and the first 12 of the second.
STRADDLING = 12

Forged = tuple[str, set[int], set[int]]  # the violation's kind, steps, rows


def repeat_a_sample(run: LedgerRun) -> list[Forged]:
    again, lost = run.rows(2, 0)[0], run.rows(5, 1)[0]
    run.rows(5, 1)[0] = again
    return [("repeated", {2, 5}, {again, lost})]


def repeat_a_sample_in_its_microbatch(run: LedgerRun) -> list[Forged]:
    rows = run.rows(30, 4)
    lost, rows[1] = rows[1], rows[0]
    return [("repeated", {30}, {rows[0], lost})]


def add_a_sample(run: LedgerRun) -> list[Forged]:
    again = run.rows(26, 0)[0]
    run.rows(33, 3).append(again)
    return [("repeated", {26, 33}, {again})]


def drop_a_sample(run: LedgerRun) -> list[Forged]:
    return [("skipped", {9}, {run.rows(9, 2).pop(0)})]


def drop_a_sample_where_epochs_meet(run: LedgerRun) -> list[Forged]:
    return [("skipped", {STRADDLING}, {run.rows(STRADDLING, 2).pop(0)})]


def repeat_a_sample_where_epochs_meet(run: LedgerRun) -> list[Forged]:
    again = run.rows(3, 1)[0]
    lost = next(row for row in run.rows(STRADDLING, 0))
    run.rows(STRADDLING, 0)[0] = again
    return [("repeated", {3, STRADDLING}, {again, lost})]


def swap_within_a_microbatch(run: LedgerRun) -> list[Forged]:
    rows = run.rows(17, 4)
    rows[0], rows[2] = rows[2], rows[0]
    return [("within_microbatch", {17}, {rows[0], rows[2]})]


def swap_between_microbatches(run: LedgerRun) -> list[Forged]:
    one, other = run.rows(8, 0), run.rows(8, 3)
    one[0], other[0] = other[0], one[0]
    return [("between_microbatches", {8}, {one[0], other[0]})]


def swap_between_steps(run: LedgerRun) -> list[Forged]:
    one, other = run.rows(5, 2), run.rows(9, 0)
    one[0], other[0] = other[0], one[0]
    return [("moved", {5, 9}, {one[0], other[0]})] * 2


def leave_a_step_out(run: LedgerRun) -> list[Forged]:
    lost = run.rows_of(21)
    run.microbatches = [microbatch for microbatch in run.microbatches if microbatch["step"] != 21]
    return [("step_missing", {21}, set(lost))]


def leave_a_microbatch_out(run: LedgerRun) -> list[Forged]:
    lost = run.rows(21, 3)
    run.microbatches = [
        microbatch for microbatch in run.microbatches if (microbatch["step"], microbatch["microbatch"]) != (21, 3)
    ]
    return [("skipped", {21}, set(lost))]


def count_a_step_twice(run: LedgerRun) -> list[Forged]:
    run.microbatches += [microbatch for microbatch in run.microbatches if microbatch["step"] == 31]
    return [("step_repeated", {31}, set(run.rows_of(31)))]


def train_a_batch_again_in_place_of_the_next(run: LedgerRun) -> list[Forged]:
    again, lost = run.rows_of(28), run.rows_of(29)
    for microbatch in range(MICROBATCHES):
        run.rows(29, microbatch)[:] = run.rows(28, microbatch)
    return [("repeated", {28, 29}, {*again, *lost})]


def read_a_row_that_is_not_there(run: LedgerRun) -> list[Forged]:
    lost = run.rows(6, 1)[0]
    run.rows(6, 1)[0] = 5000
    return [("foreign", {6}, {5000, lost})]


def cut_microbatches_elsewhere(run: LedgerRun) -> list[Forged]:
    moved = run.rows(36, 1).pop(0)
    run.rows(36, 0).append(moved)
    return [("between_microbatches", {36}, {moved})]


FORGERIES: tuple[Callable[[LedgerRun], list[Forged]], ...] = (
    repeat_a_sample,
    repeat_a_sample_in_its_microbatch,
    add_a_sample,
    drop_a_sample,
    drop_a_sample_where_epochs_meet,
    repeat_a_sample_where_epochs_meet,
    swap_within_a_microbatch,
    swap_between_microbatches,
    swap_between_steps,
    leave_a_step_out,
    leave_a_microbatch_out,
    count_a_step_twice,
    train_a_batch_again_in_place_of_the_next,
    read_a_row_that_is_not_there,
    cut_microbatches_elsewhere,
)
