"""`holdfast corpus`: a generated corpus to try Holdfast on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import rich.progress as bars

    import tasks.config.load as settings
    import tasks.corpora.generate as generate


def corpus(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    job: Annotated[
        Literal["policy", "quality"],
        typer.Option(help="policy: raw text, metadata, 11 classes. quality: token ids, metadata, a binary label."),
    ],
    rows: Annotated[int, typer.Option(help="Number of rows.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set seed or rows_per_file.")
    ] = None,
) -> None:
    """Make a synthetic corpus to try Holdfast on.

    It is a folder of Parquet files with the columns of one of the two example configurations, policy and quality.
    """
    config = settings.configure(
        generate.CorpusConfig, settings.change_values({}, assignments or []), "configuration of the corpus"
    )
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), bars.TaskProgressColumn())
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"writing {out}", total=rows)
        paths = generate.generate_corpus(out, job, rows, config, on_rows=lambda count: progress.advance(bar, count))
    print(f"{rows:,} rows in {len(paths)} files in {out}")
