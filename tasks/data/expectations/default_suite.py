"""The default suite: what is expected of the measures of every data set, in Great Expectations' own format.

Invariant: plain values, as they stand in a suite's JSON. Only an expectation of severity "critical" keeps a data set
from being published; "warning" is reported, "info" is listed.
"""

from tasks.configuration.run import DataConfig
from tasks.data.expectations.user_suite import Expectation
from tasks.data.remarks.shared_texts import WARN_SHARE
from tasks.data.statistics import MAX_CATEGORIES

MEASURED_SPLITS = ("validation", "test")
FEWEST_ROWS_MEASURED = 100


def default_suite(config: DataConfig) -> list[Expectation]:
    """The expectations for the columns that a configuration names."""
    return [
        *(_missing_share(name, config) for name in (*config.numeric, *config.categorical)),
        *_training_rows(config),
        *(_categories(name) for name in config.categorical),
        *(expectation for split in MEASURED_SPLITS for expectation in _measured_split(split, config)),
    ]


def _missing_share(name: str, config: DataConfig) -> Expectation:
    return _at_most(
        f"missing_share.{name}",
        config.max_missing_fraction,
        "critical",
        f"missing values in column {name!r}",
        "Raise data.max_missing_fraction, or take the column out of the configuration.",
    )


def _training_rows(config: DataConfig) -> list[Expectation]:
    return [
        _at_least(
            "rows_per_class",
            10,
            "warning",
            "rows of the training split for each class",
            "Check that data.label names the target, or give more rows.",
        ),
        _at_most(
            "class_share.largest",
            0.99,
            "warning",
            "rows of the most frequent class",
            "A model that always predicts this class is right as often: give more rows of the others.",
        ),
        _at_least(
            "length.median",
            2,
            "warning",
            "characters of the median text" if config.text else "tokens of the median row",
            f"Check that data.{'text' if config.text else 'tokens'} names the column that is to be classified.",
        ),
    ]


def _categories(name: str) -> Expectation:
    return _at_most(
        f"categories.{name}",
        MAX_CATEGORIES - 1,
        "warning",
        f"distinct values of column {name!r}, of which the {MAX_CATEGORIES:,} most frequent are told apart",
        "Take the column out if it is an id, or group its values.",
    )


def _measured_split(split: str, config: DataConfig) -> list[Expectation]:
    what = "text" if config.text else "list of tokens"
    return [
        _at_least(
            f"rows.{split}",
            FEWEST_ROWS_MEASURED,
            "info",
            f"rows of the {split} split",
            "With fewer rows its metrics are uncertain by several per cent.",
        ),
        _at_most(
            f"repeated_texts.{split}",
            WARN_SHARE,
            "info",  # the remarks on the data report it
            f"{split} rows whose {what} a row of the training split has",
            "Remove the repeated rows, or keep them in one split.",
        ),
    ]


def _at_most(column: str, bound: float, severity: str, description: str, notes: str) -> Expectation:
    return _between(column, {"max_value": bound}, severity, description, notes)


def _at_least(column: str, bound: float, severity: str, description: str, notes: str) -> Expectation:
    return _between(column, {"min_value": bound}, severity, description, notes)


def _between(column: str, bounds: dict[str, float], severity: str, description: str, notes: str) -> Expectation:
    return {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": column, **bounds},
        "severity": severity,
        "description": description,
        "notes": notes,
    }
