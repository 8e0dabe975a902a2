"""The command `predict`: an exported model, and all rows of a table.

Invariant: asked to end, the command leaves no part of a result.
"""

import json
import os
import time
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from flows.commands.ending import ending_in_order
from tasks.models.prediction import Prediction
from tasks.telling.terminal import console
from training.predicting.windows import open_model
from training.standalone.holdfast_inputs import PREPROCESSING_FILE


def predict_with_display(
    folder: Path,
    data: str,
    result: Path,
    threads: int | None,
    truncates: bool,
    calibrated: bool,
    bad_rows: Path | None = None,
) -> str:
    """Predict, and show how far it is; a sentence about the result. Raises what `Prediction.write` raises."""
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's threads
    model = open_model(folder, threads, truncates, calibrated)
    id_column = json.loads((folder / PREPROCESSING_FILE).read_text(encoding="utf-8"))["id"]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    started = time.monotonic()
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    prediction = Prediction(model, data, result, id_column, bad_rows)
    with ending_in_order(), shown as progress:
        bar = progress.add_task("predicting", total=None)
        counts = prediction.write(lambda done, total: progress.update(bar, completed=done, total=total))
    said = f"{counts.predicted:,} rows in {result}, {counts.predicted / (time.monotonic() - started):,.0f} a second"
    if bad_rows is None:
        return said
    if counts.left_out == 0:
        return f"{said}; none left out"
    return f"{said}; {counts.left_out:,} left out, listed with the reasons in {bad_rows}"
