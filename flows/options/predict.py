"""What is typed for `holdfast predict`."""

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `holdfast export` has written.")],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Parquet file with the columns that the model's README.md lists.")
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
) -> None:
    """Predict the label of every row of a table, by an exported model.

    RESULT has the rows of DATA in their order: the id, or the row's number where there is none; the predicted label;
    the probability of each label. Memory does not grow with the number of rows. A GPU is used where torch finds one.
    """
    from flows.commands.models.predict import predict_with_display

    print(predict_with_display(model, data, result, threads, truncate, calibrated))
