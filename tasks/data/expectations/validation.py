"""Great Expectations, as it is called here: a suite is validated over a table in memory.

Invariant: nothing leaves the machine, and results come in the order of the expectations. To import this module takes
seconds of processor time, so only who validates does it.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import great_expectations as gx
import pyarrow as pa
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.exceptions import GreatExpectationsError
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

from tasks.data.expectations.user_suite import wrong_expectation

FIELDS = ("type", "kwargs", "severity", "description", "notes")
# A context is the one of its process as soon as it is made.
_lock = Lock()


def validate(suite: Sequence[Mapping[str, Any]], table: pa.Table, row_id: str | None = None) -> list[Any]:
    """The result of each expectation, an `ExpectationValidationResult`, over a table in which null is missing.

    Rows that do not meet an expectation are named by the column `row_id`. Without it a result has its verdict alone,
    which takes half as long: of a measure, what was found is known.
    """
    result_format: dict[str, Any] = {"result_format": "BOOLEAN_ONLY"}
    if row_id is not None:
        result_format = {"result_format": "COMPLETE", "unexpected_index_column_names": [row_id]}
    with _lock:
        context = gx.get_context(mode="ephemeral")
        context.enable_analytics(False)
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("data").add_dataframe_asset("table")
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": table.to_pandas()})
        expectations = [_configured(expectation, index) for index, expectation in enumerate(suite)]
        found = batch.validate(
            gx.ExpectationSuite(name="suite", expectations=expectations), result_format=result_format
        )
    return sorted(found.results, key=lambda result: int(result.expectation_config.meta["index"]))


def require_valid(suite: Sequence[Mapping[str, Any]], path: str) -> None:
    """Raise `ConfigurationError` for the first expectation of a user's suite that Great Expectations does not know."""
    for index, expectation in enumerate(suite):
        try:
            _configured(expectation, index)
        except (GreatExpectationsError, ValueError, TypeError) as error:
            problem = "; ".join(line.strip() for line in str(error).splitlines()[:5])
            raise wrong_expectation(path, index, expectation["type"], problem) from error


def problem_of(result: Any) -> str | None:
    """Why an expectation could not be evaluated; None where it was."""
    # Of one metric, or of several by their names.
    info = result.exception_info or {}
    for found in (info, *info.values()):
        if isinstance(found, dict) and found.get("raised_exception"):
            return str(found.get("exception_message"))
    return None


def _configured(expectation: Mapping[str, Any], index: int) -> Any:
    given = {name: expectation[name] for name in FIELDS if name in expectation}
    return ExpectationConfiguration(**given | {"meta": {"index": index}}).to_domain_obj()
