"""The data set of the run from whose weights a new run begins, as what drift is measured from.

Invariant: what is wrong with that run is found where its weights are read; here it means that no drift is measured.
"""

from storage.datasets import find_dataset
from storage.errors import HoldfastError
from storage.runs.addresses import find_target
from storage.runs.manifest import Manifest
from tasks.configuration.run import RunConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.expectations.drift import Described, describe_dataset


def find_reference(config: RunConfig) -> Described | None:
    """The data set of `train.start_from`, where that is a run whose data set is still in its store."""
    origin = config.train.start_from
    if origin is None:
        return None
    try:
        store, run = find_target(origin)
        if run is None:
            return None  # an exported model, which has no data set beside it
        state = Manifest(store, run).load_head().state
        dataset = find_dataset(store, state.dataset_digest, state.dataset_sha256)
        contract = None if dataset is None else find_contract_result(store, dataset)
    except HoldfastError:
        return None
    return None if dataset is None or contract is None else describe_dataset(dataset, contract.get("measures", {}))
