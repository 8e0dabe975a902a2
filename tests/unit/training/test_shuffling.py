"""How well the order shuffles: figures that stand in training/data/README.md, and what they follow from."""

from pathlib import Path

import pytest

from tests.helpers.shuffling import CLASS_SHARES, measure_balance, measure_shuffling
from training.data.order import WINDOW_GROUPS

README = Path(__file__).parents[3] / "training/data/README.md"
ROWS, GROUP_ROWS, BATCH_SIZE = 1_000_000, 1024, 512
WINDOW_SIZE = WINDOW_GROUPS * GROUP_ROWS


def test_a_sample_travels_as_far_as_in_a_full_shuffle_from_the_shards_and_between_epochs() -> None:
    found = measure_shuffling(ROWS, GROUP_ROWS, BATCH_SIZE)
    # A thousand row groups travel independently: the mean of their distances has a standard deviation of 2.2 %.
    assert found.travel_from_shards == pytest.approx(1, abs=0.07)
    assert found.travel_between_epochs == pytest.approx(1, abs=0.07)


def test_what_windows_cost_is_that_a_row_group_stays_together_and_no_more() -> None:
    found = measure_shuffling(ROWS, GROUP_ROWS, BATCH_SIZE)
    assert found.distance_in_row_group == pytest.approx(WINDOW_SIZE / ROWS, rel=0.02)
    # One pair of a batch in sixteen is of one row group, and always in one window; others meet as in a full shuffle.
    num_groups = ROWS / GROUP_ROWS
    of_one_group = (GROUP_ROWS - 1) / (WINDOW_SIZE - 1)
    meet = of_one_group + (1 - of_one_group) * (WINDOW_GROUPS - 1) / (num_groups - 1)
    assert found.same_window_again == pytest.approx(meet, rel=0.1)
    assert found.same_batch_again == pytest.approx(meet * BATCH_SIZE / WINDOW_SIZE, rel=0.1)


@pytest.mark.parametrize("chunk_size", [WINDOW_SIZE, BATCH_SIZE])
def test_classes_are_balanced_as_in_a_full_shuffle_in_windows_and_in_batches(chunk_size: int) -> None:
    found = measure_balance(ROWS, GROUP_ROWS, chunk_size)
    num_chunks, freedom = ROWS // chunk_size, len(CLASS_SHARES) - 1
    assert found.chi_square == pytest.approx(1, abs=4 * (2 / (num_chunks * freedom)) ** 0.5)
    assert found.largest_deviation < 6


def test_the_figures_of_the_readme_are_those_that_are_measured() -> None:
    """They are the same on every machine."""
    text = README.read_text(encoding="utf-8")
    shuffling = measure_shuffling(ROWS, GROUP_ROWS, BATCH_SIZE)
    told = [
        f"{shuffling.travel_from_shards:.3f}",
        f"{shuffling.travel_between_epochs:.3f}",
        f"{shuffling.distance_in_row_group:.4f}",
        f"{shuffling.same_window_again:.4f} ({shuffling.same_window_again_shuffled:.4f})",
        f"{shuffling.same_batch_again:.5f} ({shuffling.same_batch_again_shuffled:.5f})",
    ]
    assert f"| 1,000,000 | 1,024 | {' | '.join(told)} |" in text
    for name, size in (("window", WINDOW_SIZE), ("batch", BATCH_SIZE)):
        found = measure_balance(ROWS, GROUP_ROWS, size)
        shown = f"{found.chi_square:.3f} | {found.largest_deviation:.1f} | {found.rarest_lowest:.2%}"
        assert f"| 1,000,000 | {name} of {size:,} | {shown} |" in text
