"""What is typed for `holdfast export`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.options.shared import AsJson, Assignments, CheckpointChoice, RunArgument, find_run, print_result


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    assignments: Assignments = None,
    checkpoint: CheckpointChoice = "best",
    no_onnx: Annotated[
        bool, typer.Option("--no-onnx", help="Write no model.onnx: it takes seconds, and needs holdfast[export].")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is an earlier export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a folder that loads anywhere.

    It has the weights, the tokenizer, how columns are imputed and scaled, the labels, the metrics, an ONNX file, Python
    code that needs torch, safetensors and, for text, tokenizers alone, and README.md: how to use the model, and where
    it comes from. What goes into it is hashed first. Nothing about the run is changed; it may be in training.
    """
    store, name = find_run(run, assignments or [])
    from flows.commands.models.export import export_with_display, render_export

    print_result(export_with_display(store, name, checkpoint, out, not no_onnx, overwrite), as_json, render_export)
