"""The README.md of an exported model: what it takes and gives, how good it is, how to use it, where it comes from.

Invariant: pure. Text from outside is text or code, and never markup of the page.
"""

from dataclasses import replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from storage.runs.metric_values import METRIC_WORDS
from tasks.console.markdown import as_code, code_text, escape_markdown, markdown_table
from tasks.models.description import example_row
from tasks.reporting.calibration_tables import describe_calibration, thresholds_table
from tasks.reporting.slices import EXPLANATION, slices_tables
from tasks.text import count_of
from training.export.standalone.holdfast_targets import outputs_of

TEMPLATE = "models/model_card.md.jinja"
# So many columns, and of each so many slices, the largest ones: metrics.json has all.
MOST_SLICED_COLUMNS, MOST_SLICES = 8, 12
MOST_LABELS = 100


def render_card(
    inputs: dict[str, Any],
    labels: dict[str, Any],
    metrics: dict[str, Any],
    calibration: dict[str, Any] | None,
    provenance: dict[str, Any],
    sha256: dict[str, str],
    adapter: dict[str, Any] | None = None,
    own: dict[str, str] | None = None,
) -> str:
    """The card, of the other files' contents and hashes.

    `adapter` says how one that is alone there is loaded; `own` has module and function of a user's own code.
    """
    template = _environment().get_template(TEMPLATE)
    return template.render(
        inputs=inputs,
        labels=labels,
        answer=outputs_of(labels["kind"], labels["classes"]).answer,
        metrics=_metric_rows(metrics),
        validated_at=metrics["validation"] and metrics["validation"]["step"],
        is_tested=metrics["test"] is not None,
        slices=_slices(metrics["test"]),
        about_slices=EXPLANATION,
        calibrated=[escape_markdown(sentence) for sentence in describe_calibration(calibration)],
        has_temperature=calibration is not None and calibration["temperature"] is not None,
        thresholds=markdown_table(table) if (table := thresholds_table(calibration)).rows else "",
        provenance=provenance,
        sha256=sha256,
        adapter=adapter,
        base=repr(adapter["base"]) if adapter else "",
        own=own,
        example=repr(example_row(inputs)),
        limit=_limit(inputs),
        label_names=_name_labels(labels["classes"]),
    )


def _name_labels(classes: list[str]) -> str:
    names = [as_code(name) for name in classes[:MOST_LABELS]]
    left_out = len(classes) - len(names)
    return f"{', '.join(names)} and {left_out:,} more, which `labels.json` has" if left_out else ", ".join(names)


def _limit(inputs: dict[str, Any]) -> str:
    most = f"{inputs['max_tokens']:,}"
    return (
        f"of which the first {most} tokens are read"
        if inputs["too_long"] == "truncate"
        else f"of at most {most} tokens"
    )


def _metric_rows(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value in validation, value on the test split."""
    found = [metrics[split]["metrics"] if metrics[split] else {} for split in ("validation", "test")]
    names = dict.fromkeys(name for values in found for name in values)
    return [(METRIC_WORDS.get(name, name), *(_shown(values.get(name)) for values in found)) for name in names]


def _slices(evaluation: dict[str, Any] | None) -> list[str]:
    """A table for each column, of the first ones; its first row is that of all samples."""
    tables = slices_tables(evaluation)[:MOST_SLICED_COLUMNS]
    return [markdown_table(replace(table, rows=table.rows[: 1 + MOST_SLICES])) for table in tables]


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else str(value or "")


def _environment() -> Environment:
    # Markdown, not HTML: what is in code takes `in_code`, and all other text from outside `text`.
    environment = Environment(
        loader=PackageLoader("tasks", "."),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"in_code": code_text, "text": escape_markdown, "count_of": count_of}
    return environment
