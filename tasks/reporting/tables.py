"""The tables about a run: its segments, checkpoints, rollbacks, scores and data.

Invariant: pure functions of the records, for a page and for a terminal alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from storage.datasets import CategoricalColumn, NumericColumn, SplitRecord
from storage.runs.code_version import NAME
from storage.runs.rollbacks.positions import standing
from storage.runs.run_records import QuarantineRecord
from storage.runs.run_state import CheckpointRecord, RollbackRecord, SegmentRecord
from tasks.console.tables import Cell, Kind, Table
from tasks.reporting.confusion import read_confusion
from tasks.reporting.views import describe_views
from tasks.text import (
    NOTHING,
    at_least,
    duration,
    moment,
    outcome_words,
    plain,
    share,
    shortened,
    size,
    told_apart,
)

MAX_CLASSES = 200
MAX_CLASSES_WITH_CELLS = 80  # of more classes the confusion matrix is an image
MAX_CONFUSIONS, MAX_CONFUSIONS_OF_MANY = 8, 30
MAX_CAUSE_CHARACTERS = 600
MAX_NAME_CHARACTERS = 60
VERDICTS = {"damaged": "damaged", "unreadable": "cannot be read, passed over"}


def segments_table(segments: Sequence[SegmentRecord]) -> Table:
    """Oldest first. Which Holdfast trained each one stands there where it was not the same for all."""
    columns: list[tuple[str, Kind]] = [
        ("Segment", "number"), ("Outcome", "outcome"), ("Meaning", "text"), ("Steps", "number"),
        ("Lost", "number"), ("Ranks", "number"), ("Started", "date"), ("Time", "number"), ("Samples/s", "number"),
        ("Waiting for data", "number"), ("Cause", "text"),
    ]  # fmt: skip
    rows = [
        [
            Cell(str(segment.fence)),
            Cell(segment.outcome, key=segment.outcome),
            Cell(outcome_words(segment)),
            Cell(f"{segment.first_step:,} → {segment.last_step:,}"),
            Cell(at_least(f"{segment.steps_lost:,}", segment.steps_lost_is_least)),
            Cell(f"{segment.world_size:,}"),
            Cell(moment(segment.started_at)),
            Cell(duration(segment.seconds)),
            Cell(f"{segment.throughput.samples_per_second:,.0f}" if segment.throughput else NOTHING),
            Cell(f"{segment.throughput.input_wait_fraction:.1%}" if segment.throughput else NOTHING),
            Cell(shortened(_cause_of(segment), MAX_CAUSE_CHARACTERS) or NOTHING),
        ]
        for segment in segments
    ]
    wide = ("Meaning", "Started", "Samples/s", "Waiting for data", NAME)
    if len({segment.holdfast.code_sha256 if segment.holdfast else None for segment in segments}) > 1:
        columns.append((NAME, "text"))
        for row, segment in zip(rows, segments, strict=True):
            row.append(Cell(segment.holdfast.describe() if segment.holdfast else NOTHING))
    return Table(columns, rows, wide=wide, below="Cause")


def _cause_of(segment: SegmentRecord) -> str:
    """Why it ended, and which deaths of ranks it did not end by."""
    return " ".join(filter(None, (segment.cause, describe_views(segment.views, segment.view_totals))))


def checkpoints_table(kept: Sequence[CheckpointRecord]) -> Table:
    """Newest first: the first one is the resume point."""
    columns: list[tuple[str, Kind]] = [
        ("Step", "number"), ("Path in the store", "text"), ("Size", "number"), ("Promoted", "date"),
        ("Digest", "code"), ("Weights SHA-256", "code"),
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{record.step:,}"),
            Cell(plain(record.path)),
            Cell(size(record.num_bytes)),
            Cell(moment(record.promoted_at)),
            Cell(plain(record.digest)),
            Cell(plain(record.weights_sha256)),
        ]
        for record in kept
    ]
    return Table(columns, rows)


def rollbacks_table(rollbacks: Sequence[RollbackRecord]) -> Table:
    """Oldest first."""
    columns: list[tuple[str, Kind]] = [
        ("From", "number"), ("Cause", "text"), ("Back to", "number"), ("Left out", "number"),
        ("Learning rate", "number"), ("Stands", "text"), ("When", "date"),
    ]  # fmt: skip
    kept = standing(rollbacks)
    rows = [
        [
            Cell(f"step {record.diverged_step:,}"),
            Cell(shortened(record.cause, MAX_CAUSE_CHARACTERS)),
            Cell(f"step {record.resume_step:,}"),
            Cell(f"{record.num_skipped:,} samples"),
            Cell(f"\N{MULTIPLICATION SIGN} {record.learning_rate_factor:g}"),
            Cell("yes" if record in kept else "replaced by a later one"),
            Cell(moment(record.rolled_back_at)),
        ]
        for record in rollbacks
    ]
    return Table(columns, rows)


def quarantined_table(records: Sequence[QuarantineRecord]) -> Table:
    """Checkpoints that were taken out of use, and why."""
    columns: list[tuple[str, Kind]] = [("Step", "number"), ("Path in the store", "text"), ("Reason", "text")]
    columns.append(("Quarantined", "date"))
    rows = [
        [
            Cell(f"{record.step:,}"),
            Cell(plain(record.path)),
            Cell(shortened(f"{VERDICTS[record.verdict]}: {record.reason}", MAX_CAUSE_CHARACTERS)),
            Cell(moment(record.quarantined_at)),
        ]
        for record in records
    ]
    return Table(columns, rows)


def classes_table(evaluation: Mapping[str, Any] | None) -> Table:
    """Scores per class on the test split; the area under the ROC curve where each class has its own.

    Of more than `MAX_CLASSES` classes those with the lowest F1, the lowest first.
    """
    entries = evaluation["per_class"] if evaluation else []
    scores = {"precision": "Precision", "recall": "Recall", "f1": "F1"}
    if any("auc" in entry for entry in entries):
        scores["auc"] = "ROC AUC"
    columns: list[tuple[str, Kind]] = [("Class", "text"), *((title, "bar") for title in scores.values())]
    columns.append(("Support", "number"))
    names = told_apart((entry["class"] for entry in entries), MAX_NAME_CHARACTERS)
    rows = [
        [Cell(names[index]), *(_score(entries[index][name]) for name in scores), Cell(f"{entries[index]['support']:,}")]
        for index in _shown_classes(entries)
    ]
    return Table(columns, rows)


def _shown_classes(entries: Sequence[Mapping[str, Any]]) -> Sequence[int]:
    """Indices of the classes that a table has room for; one without a sample has no F1 and is last."""
    if len(entries) <= MAX_CLASSES:
        return range(len(entries))
    scores = [2.0 if entry["f1"] is None else entry["f1"] for entry in entries]
    return sorted(range(len(entries)), key=lambda index: scores[index])[:MAX_CLASSES]


def describe_classes(evaluation: Mapping[str, Any] | None) -> str:
    """Which classes `classes_table` has, where that is not all, and what macro-F1 is the mean of."""
    num_classes = len(evaluation["per_class"]) if evaluation else 0
    if num_classes <= MAX_CLASSES:
        return describe_macro_f1(evaluation)
    shown = f"The {MAX_CLASSES:,} of {num_classes:,} classes with the lowest F1; `holdfast evaluate --json` has all."
    return f"{shown} {describe_macro_f1(evaluation)}"


def describe_macro_f1(evaluation: Mapping[str, Any] | None) -> str:
    """What macro-F1 is the mean of, for the reader of `classes_table`; '' before an evaluation."""
    scores = [entry["f1"] for entry in evaluation["per_class"]] if evaluation else []
    num_defined = sum(value is not None for value in scores)
    if num_defined == len(scores):
        return f"Macro-F1 is the mean of F1 over all {num_defined:,} classes." if scores else ""
    return (
        f"Macro-F1 is the mean of F1 over {num_defined:,} of {len(scores):,} classes: the others have no sample here "
        "and are never predicted. A dash is a score that is not defined."
    )


def confusions_table(evaluation: Mapping[str, Any] | None) -> Table:
    """The most frequent errors; more of them where the picture of the matrix cannot show them one by one."""
    columns: list[tuple[str, Kind]] = [("True → predicted", "text"), ("Samples", "number"), ("Of class", "bar")]
    confusion = read_confusion(evaluation)
    if evaluation is None or confusion is None:
        return Table(columns, [])
    names, shares = told_apart(evaluation["classes"], MAX_NAME_CHARACTERS), confusion.shares
    most = MAX_CONFUSIONS if confusion.num_classes <= MAX_CLASSES_WITH_CELLS else MAX_CONFUSIONS_OF_MANY
    rows = [
        [
            Cell(f"{names[confusion.true[index]]} → {names[confusion.predicted[index]]}"),
            Cell(f"{confusion.samples[index]:,}"),
            _share(float(shares[index])),
        ]
        for index in confusion.find_worst(most)
    ]
    return Table(columns, rows)


def splits_table(splits: Mapping[str, SplitRecord]) -> Table:
    """What each split holds."""
    columns: list[tuple[str, Kind]] = [
        ("Split", "text"), ("Rows", "number"), ("Tokens", "number"), ("Tokens per row", "number"), ("Shards", "number"),
        ("Size", "number"),
    ]  # fmt: skip
    rows = [
        [
            Cell(name),
            Cell(f"{split.num_rows:,}"),
            Cell(f"{split.num_tokens:,}"),
            Cell(f"{split.num_tokens / split.num_rows:,.1f}" if split.num_rows else NOTHING),
            Cell(f"{len(split.shards):,}"),
            Cell(size(sum(shard.num_bytes for shard in split.shards))),
        ]
        for name, split in splits.items()
    ]
    return Table(columns, rows)


def columns_table(numeric: Sequence[NumericColumn], categorical: Sequence[CategoricalColumn]) -> Table:
    """The metadata columns and how much of each is missing in the training split."""
    columns: list[tuple[str, Kind]] = [("Metadata column", "text"), ("Content", "text"), ("Missing", "bar")]
    rows = [
        [
            Cell(plain(column.name)),
            Cell(f"numeric, mean {column.mean:.4g} ± {column.standard_deviation:.4g}, median {column.median:.4g}"),
            _share(column.missing_share),
        ]
        for column in numeric
    ]
    rows += [
        [
            Cell(plain(column.name)),
            Cell(f"categorical, {len(column.vocabulary):,} values"),
            _share(column.missing_share),
        ]
        for column in categorical
    ]
    return Table(columns, rows)


def _score(value: float | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value:.3f}", value)


def _share(fraction: float) -> Cell:
    return Cell(share(fraction), fraction)
