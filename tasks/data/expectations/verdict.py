"""The verdict on a data set: every expectation with what was found, and the error where a critical one is not met.

Invariant: JSON-able, and the same for the same data and suites.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pyarrow as pa

from storage.loading import loading_libraries
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import CRITICAL
from tasks.data.contract.sampled import ROW_ID
from tasks.data.expectations.default_suite import default_suite
from tasks.data.expectations.drift import Described, drift_suite, measure_drift
from tasks.data.expectations.expected import describe_expectation, describe_expected, describe_found
from tasks.data.expectations.measures import Measures
from tasks.data.expectations.user_suite import (
    DRIFT,
    Expectation,
    columns_of,
    is_of_measures,
    measure_names,
    with_own,
    wrong_expectation,
)
from tasks.data.sources.messages import broken_contract

Result = dict[str, Any]


def load_validation() -> ModuleType:
    """The module that has Great Expectations. It takes seconds of processor time to load, once in a process."""
    with loading_libraries():
        from tasks.data.expectations import validation  # here: once in a process, with the collector off
    return validation


def give_verdict(
    config: DataConfig, measures: Measures, own: Sequence[Expectation] = (), sample: pa.Table | None = None
) -> dict[str, Any]:
    """Validate the default suite and the user's `own` over the measures, and the latter's other part over a sample.

    An expectation of a measure that the data do not have is left out. Raises `ContractError` for the first critical
    expectation that is not met, `ConfigurationError` for one of the user's that cannot be evaluated.
    """
    of_measures = [expectation for expectation in own if is_of_measures(expectation, config)]
    suite = with_own(default_suite(config), of_measures)
    asked = [expectation for expectation in suite if set(columns_of(expectation)) <= measures.keys()]
    results = _validate(asked, _as_row(measures), own, config, measures)
    of_rows = [expectation for expectation in own if not is_of_measures(expectation, config)]
    if of_rows and sample is not None:
        results += _validate(of_rows, sample, own, config)
    _require_met(results, config)
    return {
        "great_expectations": version("great-expectations"),
        "measures": {name: measure.value for name, measure in measures.items()},
        "results": results,
    }


def render_default_suite(config: DataConfig) -> str:
    """The default suite for a configuration, drift included, as the JSON of Great Expectations' format."""
    drift = drift_suite([name for name in measure_names(config) if name.startswith(DRIFT)])
    suite = {"name": "holdfast", "expectations": [*default_suite(config), *drift], "meta": {}}
    return json.dumps(suite, indent=2, ensure_ascii=False)


def validate_drift(
    config: DataConfig, own: Sequence[Expectation], reference: Described | None, described: Described
) -> list[Result]:
    """The results for the drift of a data set from the reference; none without one. Raises as `give_verdict`."""
    measures = {} if reference is None else measure_drift(reference, described)
    of_measures = [expectation for expectation in own if is_of_measures(expectation, config)]
    suite = with_own(drift_suite(measures), of_measures)
    asked = [expectation for expectation in suite if set(columns_of(expectation)) <= measures.keys()]
    results = _validate(asked, _as_row(measures), own, config, measures) if asked else []
    _require_met(results, config)
    return results


def _as_row(measures: Measures) -> pa.Table:
    return pa.table({name: [float(measure.value)] for name, measure in measures.items()})


def _validate(
    suite: Sequence[Expectation],
    table: pa.Table,
    own: Sequence[Expectation],
    config: DataConfig,
    measures: Measures | None = None,
) -> list[Result]:
    """The results of a suite over a table: of measures, or without these of sampled rows."""
    validation = load_validation()
    row_id = None if measures is not None else config.id or ROW_ID
    results = []
    for expectation, found in zip(suite, validation.validate(suite, table, row_id), strict=True):
        problem = validation.problem_of(found)
        if problem is not None:
            raise _not_evaluated(expectation, own, config, problem)
        results.append(_result(expectation, found, own, measures, row_id))
    return results


def _result(
    expectation: Expectation, found: Any, own: Sequence[Expectation], measures: Measures | None, row_id: str | None
) -> Result:
    columns = columns_of(expectation)
    words = measures[columns[0]].words if measures is not None else ""
    value = measures[columns[0]].value if measures is not None else None
    return {
        "of": ", ".join(columns),
        "type": expectation["type"],
        "suite": "own" if expectation in own else "default",
        "description": describe_expectation(expectation, columns),
        "expected": describe_expected(expectation, columns),
        "found": words or describe_found(found.to_json_dict()["result"], row_id, value),
        "severity": expectation.get("severity", CRITICAL),
        "notes": _as_text(expectation.get("notes")),
        "met": bool(found.success),
    }


def _as_text(notes: Any) -> str:
    """Great Expectations' notes are a text or a list of them."""
    return " ".join(map(str, notes)) if isinstance(notes, list) else str(notes or "")


def _not_evaluated(expectation: Expectation, own: Sequence[Expectation], config: DataConfig, problem: str) -> Exception:
    if expectation not in own or config.expectations is None:
        return RuntimeError(f"{expectation['type']} of {columns_of(expectation)}: {problem}")
    found = f"Great Expectations cannot evaluate it: {problem}"
    return wrong_expectation(config.expectations, list(own).index(expectation), expectation["type"], found)


def _require_met(results: Sequence[Mapping[str, Any]], config: DataConfig) -> None:
    broken = [result for result in results if result["severity"] == CRITICAL and not result["met"]]
    if not broken:
        return
    first = broken[0]
    remedy = first["notes"] or "Correct these rows, or change the expectation."
    remedy += ' With "severity": "warning" it would be reported and no more.' if first["suite"] == "own" else ""
    also = [f"{result['description']} ({result['found']})" for result in broken[1:]]
    where = f" of {config.expectations}" if first["suite"] == "own" else ""
    # Who has written it looks for it by its name.
    name = f" [{first['type']} of {first['of']}]" if first["suite"] == "own" else ""
    raise broken_contract(
        f"The data do not meet an expectation{where}: {first['description']}.",
        f"{first['expected']}{name}",
        first["found"],
        remedy + (f"\n  also not met: {'; '.join(also)}" if also else ""),
    )
