"""`metrics.csv` beside a run: a row for each step that has a figure, a column for each figure.

Invariant: written whole, so it has each step once, and no step that was rolled back.
"""

import csv
import io
from collections.abc import Sequence

from storage.objects.addresses import RUNS_FOLDER
from storage.objects.store import Store
from tasks.tracking.points import Point


def write_csv(store: Store, run: str, points: Sequence[Point]) -> None:
    """Write or replace it. `points` are all of the run's, in the order of their steps. Raises `StoreError`."""
    store.write(f"{RUNS_FOLDER}/{run}/metrics.csv", render_csv(points).encode())


def render_csv(points: Sequence[Point]) -> str:
    """The file's text; numbers as Python reads them back to the bit."""
    columns = sorted({point.key for point in points})
    rows: dict[int, dict[str, float]] = {}
    for point in points:
        rows.setdefault(point.step, {})[point.key] = point.value
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **values} for step, values in rows.items())
    return text.getvalue()
