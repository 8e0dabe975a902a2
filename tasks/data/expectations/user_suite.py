"""A suite of the user's own, `data.expectations`: a JSON file in Great Expectations' format.

Invariant: whatever can be found wrong with the file without the data is one error that names the expectation. To read
it loads nothing that takes seconds; what only Great Expectations knows is found by `validation.require_valid`.
"""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from storage.datasets import SPLITS
from storage.errors import ConfigurationError
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import CRITICAL, WARNING
from tasks.data.contract.sampled import sampled_columns

Expectation = dict[str, Any]
SEVERITIES = (CRITICAL, WARNING, "info")
# The columns that an expectation is about, among its kwargs.
DOMAIN = ("column", "column_A", "column_B", "column_list")
DRIFT = "drift."


def measure_names(config: DataConfig) -> list[str]:
    """The names of all measures that data of this configuration may have."""
    metadata = [*config.numeric, *config.categorical]
    return [
        *("rows", *(f"rows.{split}" for split in SPLITS), "classes", "rows_per_class", "class_share.largest"),
        *("length.median", "length.p99", "length.longest"),
        *(f"missing_share.{name}" for name in metadata),
        *(f"categories.{name}" for name in config.categorical),
        *(f"repeated_texts.{split}" for split in SPLITS[1:]),
        *(f"{DRIFT}{name}" for name in ("rows", "labels", "length")),
        *(f"{DRIFT}missing_share.{name}" for name in metadata),
        *(f"{DRIFT}mean.{name}" for name in config.numeric),
        *(f"{DRIFT}new_categories.{name}" for name in config.categorical),
    ]


def read_suite(config: DataConfig) -> list[Expectation]:
    """The expectations of the user's suite; none if there is no suite. Raises `ConfigurationError`."""
    if config.expectations is None:
        return []
    path = config.expectations
    try:
        suite = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise _wrong(path, f"the file cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _wrong(path, f"it is not JSON: {error}") from error
    expectations = suite.get("expectations") if isinstance(suite, dict) else None
    if not isinstance(expectations, list):
        raise _wrong(path, 'it has no list "expectations"')
    for index, expectation in enumerate(expectations):
        problem = _find_problem(expectation, config)
        if problem:
            kind = expectation.get("type") if isinstance(expectation, dict) else None
            raise wrong_expectation(path, index, kind, problem)
    return expectations


def wrong_expectation(path: str, index: int, kind: Any, problem: str) -> ConfigurationError:
    """The error for one expectation of a suite, counted from 0."""
    return _wrong(path, f"expectation {index + 1}{f', {kind}' if kind else ''}: {problem}")


def columns_of(expectation: Expectation) -> list[str]:
    """The columns that an expectation is about."""
    given = [expectation["kwargs"][name] for name in DOMAIN if name in expectation["kwargs"]]
    return [str(name) for value in given for name in (value if isinstance(value, list) else [value])]


def is_of_measures(expectation: Expectation, config: DataConfig) -> bool:
    """Whether it is about measures, and not about the rows of the sample."""
    return not set(columns_of(expectation)) & set(sampled_columns(config))


def with_own(suite: Sequence[Expectation], own: Sequence[Expectation]) -> list[Expectation]:
    """A suite of measures with the user's expectations, which replace those of the same type and column."""
    replaced = {(expectation["type"], *columns_of(expectation)) for expectation in own}
    kept = [expectation for expectation in suite if (expectation["type"], *columns_of(expectation)) not in replaced]
    return [*kept, *own]


def _find_problem(expectation: Any, config: DataConfig) -> str | None:
    if not (isinstance(expectation, dict) and isinstance(expectation.get("type"), str)):
        return 'expected an object with "type", such as "expect_column_values_to_not_be_null", and "kwargs"'
    if not isinstance(expectation.get("kwargs"), dict):
        return 'expected "kwargs", an object with what the expectation takes, "column" for one'
    if expectation.get("severity", CRITICAL) not in SEVERITIES:
        return f'"severity" is {expectation["severity"]!r}: expected one of {", ".join(SEVERITIES)}'
    columns = columns_of(expectation)
    if not columns:
        return (
            "it is about no column. Of the whole table there are measures, which are validated as columns: "
            f"{', '.join(measure_names(config)[:5])}, ..."
        )
    sampled, measures = list(sampled_columns(config)), measure_names(config)
    unknown = [name for name in columns if name not in sampled and name not in measures]
    if unknown:
        close = get_close_matches(unknown[0], [*sampled, *measures], 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        return (
            f"{unknown[0]!r} is neither a column that the configuration names ({', '.join(sampled)}) nor a measure."
            f"{meant}"
        )
    if len({name in sampled for name in columns}) > 1:
        return f"of {', '.join(columns)} some are columns of the rows and some are measures"
    return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"JSON has no {constant}")


def _wrong(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"The suite of expectations {path} (data.expectations) is wrong: {problem}. Nothing was prepared. "
        "It has the format in which Great Expectations writes a suite; deployments/data.md shows one."
    )
