"""The command `predict`: an exported model, and all rows of a Parquet file.

Invariant: asked to end, the command leaves no part of a result.
"""

import json
import os
import time
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from flows.commands.ending import ending_in_order
from tasks.models.prediction import predict_file
from tasks.telling.terminal import console
from training.predicting.windows import open_model
from training.standalone.holdfast_inputs import PREPROCESSING_FILE


def predict_with_display(
    folder: Path, data: Path, result: Path, threads: int | None, truncates: bool, calibrated: bool
) -> str:
    """Predict, and show how far it is; a sentence about the result. Raises what `predict_file` raises."""
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's threads
    model = open_model(folder, threads, truncates, calibrated)
    id_column = json.loads((folder / PREPROCESSING_FILE).read_text(encoding="utf-8"))["id"]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    started = time.monotonic()
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with ending_in_order(), shown as progress:
        bar = progress.add_task("predicting", total=None)
        num_rows = predict_file(
            model, data, result, id_column, lambda done, total: progress.update(bar, completed=done, total=total)
        )
    return f"{num_rows:,} rows in {result}, {num_rows / (time.monotonic() - started):,.0f} a second"
