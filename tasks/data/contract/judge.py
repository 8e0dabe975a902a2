"""What Great Expectations is asked, and how: a batch of columns, and what is expected of them.

Invariant: nothing leaves the machine, and all comes in the order asked. Great Expectations itself, which takes seconds
and much memory, is loaded by who judges and not with this module.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A batch: the values of each column, which all have as many.
Columns = Mapping[str, Any]
# The expectation, the batch's column, and what the expectation takes.
Question = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Failure:
    """An expectation that was not met: its place among those asked, its type, and the batch's rows that broke it."""

    index: int
    expectation: str
    column: str
    count: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Judgement:
    """What Great Expectations found in one batch: each expectation's result, JSON-able, and the failures."""

    results: list[dict[str, Any]]
    failures: list[Failure]


def load() -> None:
    """Load Great Expectations."""
    gc.disable()  # hardly anything of a module that is loaded is garbage, and to look for it takes time
    import great_expectations.data_context  # noqa: F401
    import pandas  # noqa: F401

    gc.enable()


def judge_here(batch: Columns, asked: Sequence[Question], index_column: str | None) -> Judgement:
    """Ask Great Expectations in this process. Rows that break an expectation are named by the index column, if any."""
    import great_expectations as gx
    import pandas as pd
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("measured").add_dataframe_asset("rows")
    expectations = [
        getattr(gx.expectations, kind)(column=column, meta={"index": index}, **values)
        for index, (kind, column, values) in enumerate(asked)
    ]
    suite = gx.ExpectationSuite(name="contract", expectations=expectations)
    result_format: dict[str, Any] = {"result_format": "COMPLETE"}
    if index_column is not None:
        result_format["unexpected_index_column_names"] = [index_column]
    frame = pd.DataFrame(dict(batch))
    checked = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    outcome = checked.validate(suite, result_format=result_format)
    results: list[Any] = list(outcome.results)
    in_order = sorted(results, key=lambda result: int(result.expectation_config.meta["index"]))
    failures = [_failure(result) for result in in_order if not result.success]
    return Judgement([_as_json(result) for result in in_order], failures)


def _as_json(result: Any) -> dict[str, Any]:
    """Without what differs from one time to the next: ids, moments."""
    asked = dict(result.expectation_config.kwargs)
    asked.pop("batch_id", None)
    return {
        "expectation": result.expectation_config.type,
        "column": asked.pop("column"),
        "expected": asked,
        "success": bool(result.success),
        "elements": int(result.result.get("element_count", 0)),
        "unexpected": int(result.result.get("unexpected_count", 0)),
    }


def _failure(result: Any) -> Failure:
    expectation = result.expectation_config
    # Of one metric, or of several by their names.
    told = result.exception_info or {}
    if any(isinstance(found, dict) and found.get("raised_exception") for found in (told, *told.values())):
        raise RuntimeError(f"Great Expectations could not judge {expectation.type}: {told}")
    return Failure(
        expectation.meta["index"],
        expectation.type,
        expectation.kwargs["column"],
        int(result.result.get("unexpected_count", 0)),
        result.result.get("unexpected_index_list") or [],
    )
