"""`holdfast export`: a checkpoint as a folder that loads anywhere.

Invariant: asked to end, the command leaves no part of a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flows.commands.arguments import (
    AsJson,
    Assignments,
    CheckpointChoice,
    FactoryOption,
    RunArgument,
    find_factory,
    find_run,
)
from flows.commands.results import ending_in_order, print_result
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import tasks.models.export as exporting
    import tasks.text as texts

if TYPE_CHECKING:
    from storage.objects.store import Store


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    assignments: Assignments = None,
    checkpoint: CheckpointChoice = "best",
    no_onnx: Annotated[
        bool, typer.Option("--no-onnx", help="Write no model.onnx: it takes seconds, and needs holdfast[export].")
    ] = False,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter", help="Of a model with [model.lora]: write the adapter alone, as peft loads it, without ONNX."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is an earlier export.")] = False,
    factory: FactoryOption = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a folder that loads anywhere.

    It has the weights, the tokenizer, how columns are imputed and scaled, the labels, the metrics, an ONNX file, Python
    code that needs torch, safetensors and, for text, tokenizers alone, and README.md: how to use the model, and where
    it comes from. What goes into it is hashed first. Nothing about the run is changed; it may be in training.

    Adapters of [model.lora] are merged into the model's own weights, and nothing of peft is needed; with --adapter they
    stay apart.
    """
    store, name = find_run(run, assignments or [])
    own = find_factory(run, assignments or [], factory)
    found = export_with_display(store, name, checkpoint, out, not no_onnx, overwrite, adapter, own)
    print_result(found, as_json, render_export)


def export_with_display(
    store: Store,
    run: str,
    choice: str,
    out: Path,
    with_onnx: bool,
    overwrite: bool,
    adapter: bool = False,
    factory: str | None = None,
) -> dict[str, Any]:
    """Export, and show that it goes on. Raises what `export_run` raises."""
    with ending_in_order(), console.status(f"exporting {run} to {out}"):
        return exporting.export_run(store, run, choice, out, with_onnx, overwrite, adapter, factory)


def render_export(result: dict[str, Any]) -> Text:
    """The result for a person."""
    metric = ""
    if isinstance(result["metric"], float):
        metric = f", {texts.metric_name(result['metric_name'])} {texts.score(result['metric'])} in validation"
    return Text(f"{result['run']} as of step {result['step']:,}{metric}, in {result['out']}: begin with its README.md.")
