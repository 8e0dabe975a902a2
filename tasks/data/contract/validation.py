"""Great Expectations, as it is called here: a suite is validated over a table in memory.

Invariant: nothing leaves the machine, and results come in the order of the expectations. To import this module takes
seconds of processor time, so only who validates does it.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import great_expectations as gx
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

FIELDS = ("type", "kwargs", "severity", "description", "notes", "meta")
# A context is the one of its process as soon as it is made.
_lock = Lock()


def validate(suite: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> list[Any]:
    """The result of each expectation, an `ExpectationValidationResult`; `table` has the values of each column.

    Raises `RuntimeError` for an expectation that cannot be evaluated.
    """
    with _lock:
        context = gx.get_context(mode="ephemeral")
        context.enable_analytics(False)
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("data").add_dataframe_asset("table")
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": pd.DataFrame(dict(table))})
        expectations = [_configured(expectation, index) for index, expectation in enumerate(suite)]
        found = batch.validate(gx.ExpectationSuite(name="suite", expectations=expectations), result_format="COMPLETE")
    results: list[Any] = sorted(found.results, key=lambda result: int(result.expectation_config.meta["index"]))
    for result in results:
        _require_evaluated(result)
    return results


def _configured(expectation: Mapping[str, Any], index: int) -> Any:
    given = {name: expectation[name] for name in FIELDS if name in expectation}
    return ExpectationConfiguration(**given | {"meta": {"index": index}}).to_domain_obj()


def _require_evaluated(result: Any) -> None:
    # Of one metric, or of several by their names.
    told = result.exception_info or {}
    for found in (told, *told.values()):
        if isinstance(found, dict) and found.get("raised_exception"):
            raise RuntimeError(f"{result.expectation_config.type}: {found.get('exception_message')}")
