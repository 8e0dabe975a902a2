"""`make bench-shuffling`: how well the order of samples shuffles; the tables in training/data/README.md.

Nothing is timed: the figures are the same on every machine.
"""

from rich.console import Console
from rich.table import Table

from tests.helpers.shuffling import CLASS_SHARES, Shuffling, measure_balance, measure_shuffling
from training.data.order import WINDOW_GROUPS

BATCH_SIZE = 512
# Rows, and rows of a row group: the demonstration, and what `holdfast corpus` makes at larger sizes.
CASES = ((6_400, 256), (100_000, 1024), (1_000_000, 1024), (10_000_000, 1024))


def main() -> None:
    """Print the tables."""
    console = Console(width=150, highlight=False)
    console.print(f"Batches of {BATCH_SIZE}; 1 is a full shuffle, or the chance in a full shuffle stands behind it.")
    travel = Table(
        "rows", "rows a group", "travel from shards", "between epochs", "distance in a row group",
        "one window again", "one batch again", box=None, pad_edge=False,
    )  # fmt: skip
    for num_rows, group_rows in CASES:
        travel.add_row(f"{num_rows:,}", f"{group_rows:,}", *_cells(measure_shuffling(num_rows, group_rows, BATCH_SIZE)))
    console.print(travel)
    console.print(f"\n{len(CLASS_SHARES)} classes, the rarest with {CLASS_SHARES.min():.1%} of the rows.")
    balance = Table(
        "rows", "chunk", "chi-square / degrees of freedom", "largest deviation", "rarest class, lowest share",
        box=None, pad_edge=False,
    )  # fmt: skip
    for num_rows, group_rows in CASES[1:]:
        for name, size in (("window", WINDOW_GROUPS * group_rows), ("batch", BATCH_SIZE)):
            found = measure_balance(num_rows, group_rows, size)
            balance.add_row(
                f"{num_rows:,}", f"{name} of {size:,}", f"{found.chi_square:.3f}", f"{found.largest_deviation:.1f}",
                f"{found.rarest_lowest:.2%}",
            )  # fmt: skip
    console.print(balance)


def _cells(found: Shuffling) -> list[str]:
    return [
        f"{found.travel_from_shards:.3f}",
        f"{found.travel_between_epochs:.3f}",
        f"{found.distance_in_row_group:.4f}",
        f"{found.same_window_again:.4f} ({found.same_window_again_shuffled:.4f})",
        f"{found.same_batch_again:.5f} ({found.same_batch_again_shuffled:.5f})",
    ]


if __name__ == "__main__":
    main()
