"""Remarks on a run's data though no rule is broken, as its preparation logged them.

Invariant: the page is made without it too, where that cannot be read.
"""

from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError, ObjectMissingError, ObjectUnreadableError
from storage.objects.store import Store
from storage.runs.run_state import RunState
from tasks.config.changes import read_stored
from tasks.configuration.run import DataConfig
from tasks.console.announce import warn
from tasks.data.contract.result import CONTRACT_FILE, find_contract_result
from tasks.data.remarks.remarks import remarks_on


def find_remarks(store: Store, state: RunState, dataset: DatasetManifest) -> list[str] | None:
    """A sentence each; None if they cannot be read. Raises `StoreError` where the store does not answer."""
    if dataset.contract is None:
        return []
    try:
        contract = find_contract_result(store, dataset)
    except (CorruptObjectError, ObjectMissingError, ObjectUnreadableError) as error:
        warn(f"The report has no remarks on the data: their {CONTRACT_FILE} cannot be read. {error}")
        return None
    return remarks_on(dataset, contract, DataConfig.model_validate(read_stored(state.config)["data"]))
