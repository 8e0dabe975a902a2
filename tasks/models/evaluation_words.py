"""Words about the result of an evaluation, on a terminal and as an artifact in Prefect's UI.

Invariant: pure; both have the same.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tasks.console.markdown import escape_markdown, markdown_table
from tasks.console.tables import Cell, Kind, Table, show_table
from tasks.reporting.calibration_tables import describe_calibration, thresholds_table
from tasks.reporting.slices import EXPLANATION, slices_tables
from tasks.reporting.tables import classes_table, describe_classes
from tasks.text import count_of, metric_name, plain, score

WITHOUT_CLASSES = (
    "No scores per class: for at least one sample the model's output is not a number, so it predicts none there."
)


def sum_up(result: dict[str, Any]) -> str:
    """One sentence."""
    metrics = ", ".join(f"{metric_name(name)} {score(value)}" for name, value in result["metrics"].items())
    return f"Checkpoint of step {result['step']:,} on {_name_data(result)}: {metrics}."


def render_evaluation(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    calibration = [Text(line) for line in describe_calibration(result["calibration"])]
    thresholds = thresholds_table(result["calibration"])
    return Group(
        Text(plain(result["checkpoint"]), no_wrap=True, overflow="ignore"),
        Text(f"{_name_data(result)}, {count_of(result['num_samples'], 'sample')}"),
        Text(),
        show_table(_metrics_table(result)),
        Text(),
        *_show_classes(result),
        *_show_slices(result),
        *([Text(), *calibration] if calibration else []),
        *([Text(), show_table(thresholds)] if thresholds.rows else []),
    )


def _show_classes(result: dict[str, Any]) -> list[RenderableType]:
    if not result["per_class"]:
        return [Text(WITHOUT_CLASSES)]
    return [show_table(classes_table(result)), Text(describe_classes(result))]


def _show_slices(result: dict[str, Any]) -> list[RenderableType]:
    tables = slices_tables(result)
    shown: list[RenderableType] = [part for table in tables for part in (Text(), show_table(table))]
    return [*shown, Text(EXPLANATION)] if tables else []


def describe_in_markdown(result: dict[str, Any]) -> str:
    """The result as an artifact."""
    thresholds = thresholds_table(result["calibration"])
    parts = [
        escape_markdown(sum_up(result)),
        f"{escape_markdown(result['checkpoint'])}, {count_of(result['num_samples'], 'sample')}",
        markdown_table(_metrics_table(result)),
        *(
            [markdown_table(classes_table(result)), escape_markdown(describe_classes(result))]
            if result["per_class"]
            else [WITHOUT_CLASSES]
        ),
        *map(markdown_table, slices := slices_tables(result)),
        *([EXPLANATION] if slices else []),
        *map(escape_markdown, describe_calibration(result["calibration"])),
        *([markdown_table(thresholds)] if thresholds.rows else []),
    ]
    return "\n\n".join(parts) + "\n"


def _metrics_table(result: dict[str, Any]) -> Table:
    columns: list[tuple[str, Kind]] = [("Metric", "text"), ("Value", "number")]
    rows = [[Cell(metric_name(name)), Cell(score(value))] for name, value in result["metrics"].items()]
    return Table(columns, rows)


def _name_data(result: dict[str, Any]) -> str:
    return plain(result["source"]) if result["source"] is not None else f"the {result['split']} split"
