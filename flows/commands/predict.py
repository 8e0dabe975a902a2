"""`holdfast predict`: an exported model, and the label of every row of a table.

Invariant: asked to end, the command leaves no part of a result.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.arguments import AsJson, FactoryOption
from flows.commands.results import ending_in_order, print_result
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import rich.progress as bars

    import tasks.models.own_code as own_code
    import tasks.models.prediction as predicting
    import training.determinism as determinism
    import training.export.prediction as windows
    import training.export.standalone.holdfast_inputs as holdfast_inputs


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `holdfast export` has written.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Table with the columns that the model's README.md lists: a file (Parquet, CSV, TSV, JSON Lines, "
            "Arrow/Feather), a folder of such files, or a glob in quotes; on this machine or in a bucket "
            "(s3://bucket/prefix/).",
        ),
    ],
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="Parquet file to write; one that is there is replaced.")
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads. Default: as many as there are processors.")
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Keep the first tokens of a row that is too long, where training refused it."),
    ] = False,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Probabilities by the temperature that was fitted on validation.")
    ] = False,
    fitted_thresholds: Annotated[
        bool,
        typer.Option(
            "--fitted-thresholds",
            help="Of a binary target, or of several labels a row: predict by the thresholds with the best F1 on "
            "validation, not above 0.5. They are thresholds of calibrated probabilities, which RESULT then has.",
        ),
    ] = False,
    skip_bad: Annotated[
        Path | None,
        typer.Option(
            metavar="ROWS",
            help="Leave out rows that cannot be predicted, and write this Parquet file with the file, "
            "row and reason of each. Default: the first of them ends the command, and no result is written.",
        ),
    ] = None,
    factory: FactoryOption = None,
    as_json: AsJson = False,
) -> None:
    """Predict the label of each row of a table by an exported model.

    RESULT has the rows of DATA in their order: the id, or the row's number in its file where there is none, with the
    file where they are several; the predicted label; the probability of each label. Memory does not grow with the
    number of rows. A GPU is used where torch finds one.
    """
    found = predict_with_display(
        model, data, result, threads, truncate, calibrated, skip_bad, factory, fitted_thresholds
    )
    print_result(found, as_json, _describe_result)


def predict_with_display(
    folder: Path,
    data: str,
    result: Path,
    threads: int | None,
    truncates: bool,
    calibrated: bool,
    bad_rows: Path | None = None,
    factory: str | None = None,
    fitted_thresholds: bool = False,
) -> dict[str, Any]:
    """Predict, and show how far it is; how many rows, JSON-able. Raises what `Prediction.write` raises."""
    determinism.pin_environment(threads)  # before the lines below load torch, and its libraries what they are set to
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's threads
    own = None if factory is None else own_code.typed_reference(factory)
    model = windows.open_model(folder, threads, truncates, calibrated, own, fitted_thresholds)
    id_column = json.loads((folder / holdfast_inputs.PREPROCESSING_FILE).read_text(encoding="utf-8"))["id"]
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeRemainingColumn(),
    )
    started = time.monotonic()
    shown = bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    prediction = predicting.Prediction(model, data, result, id_column, bad_rows)
    with ending_in_order(), shown as progress:
        bar = progress.add_task("predicting", total=None)
        counts = prediction.write(lambda done, total: progress.update(bar, completed=done, total=total))
    return {
        "result": str(result),
        "rows": counts.predicted,
        "left_out": counts.left_out,
        "bad_rows": None if bad_rows is None else str(bad_rows),
        "seconds": time.monotonic() - started,
    }


def _describe_result(found: dict[str, Any]) -> str:
    """One sentence."""
    sentence = f"{found['rows']:,} rows in {found['result']}, {found['rows'] / found['seconds']:,.0f} a second"
    if found["bad_rows"] is None:
        return sentence
    if found["left_out"] == 0:
        return f"{sentence}; none left out"
    return f"{sentence}; {found['left_out']:,} left out, listed with the reasons in {found['bad_rows']}"
