"""The validation of one data set, beside the parts of its preparation: Great Expectations takes seconds to load.

Invariant: what it finds is known before the data set is published, and what is not met ends the preparation early.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from storage.datasets import CategoricalColumn, DatasetManifest, NumericColumn
from storage.objects.digests import digest_of
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import find_contract_result, sum_up
from tasks.data.contract.sampled import LENGTH
from tasks.data.expectations.drift import Described, describe_data, describe_dataset
from tasks.data.expectations.measures import Measures, measure_data
from tasks.data.expectations.user_suite import read_suite
from tasks.data.expectations.verdict import Result, give_verdict, load_validation, validate_drift
from tasks.data.remarks.remarks import SHARED_TEXTS
from tasks.data.split import Assignment

OWN_SUITE = "own_suite"
Contract = dict[str, Any]


class Validation:
    """Measures are taken where the statistics are, then validated in a thread; drift is that from `reference`.

    Raises `ConfigurationError` for a suite of the user's that is wrong.
    """

    def __init__(self, config: DataConfig, reference: Described | None = None) -> None:
        self._config, self._reference = config, reference
        self._own = read_suite(config)
        self._own_digest = digest_of(self._own) if self._own else None
        self._task: tuple[Contract, Measures, Described, pa.Table | None] | None = None
        self._result: Future[tuple[Contract, Sequence[Result]]] | None = None

    def has_covered(self, contract: Mapping[str, Any] | None) -> bool:
        """Whether a published data set met the user's own suite, if there is one."""
        return self._own_digest is None or (contract or {}).get(OWN_SUITE) == self._own_digest

    @property
    def is_owed(self) -> bool:
        """Whether there is a suite of the user's of which it is not known that the data meet it."""
        is_met = self._result is not None and self._result.done() and self._result.exception() is None
        return self._own_digest is not None and not is_met

    def require_valid(self) -> None:
        """Raise `ConfigurationError` for an expectation of the user's that Great Expectations does not know."""
        if self._own:
            load_validation().require_valid(self._own, self._config.expectations)

    def measure(
        self,
        connection: duckdb.DuckDBPyConnection,
        dealt: Assignment,
        numeric: Sequence[NumericColumn],
        categorical: Sequence[CategoricalColumn],
        remarks: Mapping[str, Any],
        num_rows: int,
    ) -> None:
        """Take what is validated later, of the views `samples` and `sampled`."""
        measures = measure_data(connection, dealt, categorical, remarks[SHARED_TEXTS], self._config)
        rows = f"SELECT * EXCLUDE ({LENGTH}) FROM sampled"
        sample = connection.sql(rows).to_arrow_table() if self._own else None
        described = describe_data(dealt, numeric, categorical, measures, self._config)
        self._task = {"rows": num_rows, **remarks}, measures, described, sample

    def begin(self) -> None:
        """Validate what was measured. Returns at once."""
        assert self._task is not None
        beside = ThreadPoolExecutor(1, "validation")
        self._result = beside.submit(self._validate, *self._task)
        beside.shutdown(wait=False)

    def raise_what_failed(self) -> None:
        """Raise what ended it, if anything has by now."""
        if self._result is not None and self._result.done():
            self._result.result()

    def wait(self) -> tuple[Contract, str]:
        """What is kept with the data set, and one sentence. Raises `ContractError` if a critical one is not met."""
        assert self._result is not None
        contract, _ = self._result.result()
        return contract, sum_up(contract)

    def found_of(self, dataset: DatasetManifest, store: Store) -> Contract | None:
        """All that was found of a published data set, its drift too; None for one that has no contract's result."""
        if self._result is not None:
            contract, drift = self._result.result()
        else:
            kept = find_contract_result(store, dataset)
            if kept is None:
                return None
            described = describe_dataset(dataset, kept.get("measures", {}))
            contract, drift = kept, validate_drift(self._config, self._own, self._reference, described)
        return contract | {"results": [*contract["results"], *drift]}

    def _validate(
        self, kept: Contract, measures: Measures, described: Described, sample: pa.Table | None
    ) -> tuple[Contract, Sequence[Result]]:
        contract = kept | give_verdict(self._config, measures, self._own, sample)
        if self._own_digest is not None:
            contract[OWN_SUITE] = self._own_digest
        return contract, validate_drift(self._config, self._own, self._reference, described)
