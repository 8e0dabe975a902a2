"""The verdict on a data set: every expectation with what was found, and the error where a critical one is not met.

Invariant: JSON-able, and the same for the same data and suite.
"""

import gc
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tasks.data.contract.default_suite import Expectation
from tasks.data.contract.measures import SHARES, Measures
from tasks.data.sources.messages import broken_contract

CRITICAL, WARNING = "critical", "warning"


def give_verdict(suite: Sequence[Expectation], measures: Measures) -> dict[str, Any]:
    """Validate a suite over the measures. Raises `ContractError` for the first critical expectation that is not met.

    An expectation of a measure that the data do not have is left out.
    """
    asked = [expectation for expectation in suite if expectation["kwargs"]["column"] in measures]
    gc_was_on = gc.isenabled()
    gc.disable()  # hardly anything of the modules that are loaded here is garbage, and to look for it takes time
    try:
        from tasks.data.contract.validation import validate
    finally:
        if gc_was_on:
            gc.enable()
    found = validate(asked, {name: [measure.value] for name, measure in measures.items()})
    results = [
        _result(expectation, measures, bool(result.success)) for expectation, result in zip(asked, found, strict=True)
    ]
    _require_met(results)
    return {
        "great_expectations": version("great-expectations"),
        "measures": {name: measure.value for name, measure in measures.items()},
        "results": results,
    }


def _result(expectation: Expectation, measures: Measures, is_met: bool) -> dict[str, Any]:
    values = dict(expectation["kwargs"])
    name = values.pop("column")
    return {
        "of": name,
        "type": expectation["type"],
        "description": expectation["description"],
        "expected": describe_expected(expectation["type"], values, name.startswith(SHARES)),
        "found": measures[name].words or _number(measures[name].value),
        "severity": expectation["severity"],
        "notes": expectation["notes"],
        "met": is_met,
    }


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.4g}"


def describe_expected(kind: str, values: dict[str, Any], is_share: bool = False) -> str:
    """What is expected, in words: 'at most 20.0%'; of a type that has none here its name and its values."""
    lowest, highest = values.get("min_value"), values.get("max_value")
    if kind.endswith("_to_be_between") and not values.keys() - {"min_value", "max_value"}:
        bounds = (("at least", lowest), ("at most", highest))
        return " and ".join(
            f"{words} {bound:.1%}" if is_share else f"{words} {bound:,}" for words, bound in bounds if bound is not None
        )
    given = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"{kind.removeprefix('expect_').replace('_', ' ')}{': ' if given else ''}{given}"


def _require_met(results: Sequence[dict[str, Any]]) -> None:
    broken = [result for result in results if result["severity"] == CRITICAL and not result["met"]]
    if not broken:
        return
    first = broken[0]
    also = [f"{result['of']} ({result['found']})" for result in broken[1:]]
    remedy = first["notes"] + (f"\n  also not met: {'; '.join(also)}" if also else "")
    raise broken_contract(
        f"The data do not meet an expectation: {first['description']}.",
        f"{first['expected']} [{first['type']} of {first['of']}]",
        first["found"],
        remedy,
    )


def describe_unmet(contract: dict[str, Any]) -> list[str]:
    """A sentence for each expectation of severity "warning" that is not met."""
    return [
        f"Not as expected: {result['description']}: {result['found']}, expected {result['expected']}. {result['notes']}"
        for result in contract.get("results", [])
        if result["severity"] == WARNING and not result["met"]
    ]
