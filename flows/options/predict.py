"""What is typed for `holdfast predict`."""

from pathlib import Path
from typing import Annotated

import typer


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
    skip_bad: Annotated[
        Path | None,
        typer.Option(
            metavar="ROWS",
            help="Leave out rows that cannot be predicted, and write this Parquet file with their places and the "
            "reasons. Default: the first of them ends the command, and no result is written.",
        ),
    ] = None,
) -> None:
    """Predict the label of every row of a table, by an exported model.

    RESULT has the rows of DATA in their order: the id, or the row's number in its file where there is none, with the
    file where they are several; the predicted label; the probability of each label. Memory does not grow with the
    number of rows. A GPU is used where torch finds one.
    """
    from flows.commands.models.predict import predict_with_display

    print(predict_with_display(model, data, result, threads, truncate, calibrated, skip_bad))
