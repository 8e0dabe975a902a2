"""The command `export`: a checkpoint as a folder that loads anywhere.

Invariant: asked to end, the command leaves no part of a folder.
"""

from pathlib import Path
from typing import Any

from rich.text import Text

from flows.commands.ending import ending_in_order
from storage.objects.store import Store
from tasks.models.export import export_run
from tasks.telling.terminal import console


def export_with_display(
    store: Store, run: str, choice: str, out: Path, with_onnx: bool, overwrite: bool
) -> dict[str, Any]:
    """Export, and show that it goes on. Raises what `export_run` raises."""
    with ending_in_order(), console.status(f"exporting {run} to {out}"):
        return export_run(store, run, choice, out, with_onnx, overwrite)


def render_export(result: dict[str, Any]) -> Text:
    """The result for a person."""
    metric = f", {result['metric']:.4f} in validation" if isinstance(result["metric"], float) else ""
    return Text(f"{result['run']} as of step {result['step']:,}{metric}, in {result['out']}: begin with its README.md.")
