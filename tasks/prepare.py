"""Task `prepare`: the data set of the configured source, made if it is not there yet.

Invariant: a run whose data or configuration changed is refused before anything is written, and so is one whose holder
is seen to live.
"""

from collections.abc import Callable
from typing import Any

from prefect.runtime import flow_run

from storage.datasets import SPLITS, DatasetManifest
from storage.objects.addresses import check_writable
from tasks.config.changes import as_begun, require_compatible
from tasks.config.metric import require_defined_metric
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.console.display import PreparationDisplay
from tasks.console.markdown import escape_markdown
from tasks.data.contract.result import find_contract_result, render_markdown
from tasks.data.expectations.origin import find_reference
from tasks.data.identity.begun_source import require_same_source
from tasks.data.pipeline import prepare_dataset
from tasks.data.remarks.remarks import remarks_on
from tasks.models.brought import pin_brought, require_same_brought
from tasks.prefect_bridge.server import show
from tasks.prepare_unit import PrefectUnits
from tasks.recovery.settle import require_no_living_holder_here
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths, require_scratch
from tasks.step import step


@step("prepare")
def prepare_data(config: RunConfig) -> tuple[DatasetManifest, str]:
    """The published data set of the configured source, made if it is not there yet."""
    run_paths = open_run_paths(config)
    if (flow_run.run_count or 0) <= 1:
        # A store that does not answer the first time is more likely a wrong address, which a person wants to know at
        # once.
        check_writable(run_paths.store)
    else:
        Retry(config.retry).call("Writing to the store", lambda: check_writable(run_paths.store))
    require_scratch(run_paths)
    dataset = Retry(config.retry).call("Preparing the data", lambda: _prepare(config, run_paths))
    return dataset, _describe(dataset)


def _prepare(config: RunConfig, run_paths: RunPaths) -> DatasetManifest:
    head = run_paths.manifest.find_head()
    begun = as_begun(config, head.state if head else None)
    _announce_id(config.data.id, begun.data.id, is_new=head is None)
    config = pin_brought(begun) if head is None else begun
    if head is not None:
        if head.state.lease is not None:
            # Whether one on another machine lives takes a minute to find out: `recover` does, once.
            require_no_living_holder_here(run_paths, head.state.lease)
        require_compatible(head.state, config)
        require_same_brought(config)
    contracts: list[dict[str, Any] | None] = []
    with PreparationDisplay() as display:
        dataset = require_same_source(config.data, run_paths, head.state, display.show) if head is not None else None
        if dataset is None:
            engine = PrefectUnits(config.data, config.prepare)
            # A run that was begun may have its data set made again; its suite was validated when it was begun.
            data = config.data.model_copy(update={} if head is None else {"expectations": None})
            dataset = prepare_dataset(
                data,
                run_paths.store,
                run_paths.data_scratch,
                display.show,
                _run_part,
                engine,
                run_paths.cache,
                find_reference(config) if head is None else None,
                contracts.append,
            )
    contract = contracts[0] if contracts else find_contract_result(run_paths.store, dataset)
    remarks = remarks_on(dataset, contract, config.data)
    for remark in remarks if head is None else []:
        warn(remark)
    if contract is not None and head is None:
        listed = "".join(f"\n- {escape_markdown(remark)}" for remark in remarks)
        show(f"contract-{dataset.digest[:12]}", f"{render_markdown(dataset, contract)}{listed}\n")
    require_defined_metric(config, dataset)
    return dataset


def _announce_id(named: str | None, column: str | None, is_new: bool) -> None:
    """Log what identifies a row where the configuration does not."""
    if named is None and column:
        announce(f"data.id is not set: the run keeps the column {column!r}, with which it was begun.")
    elif named is None and is_new:
        announce("data.id is not set: a row's id is its file and its row number.")


@step("prepare part", "prepare: {name}")
def _run_part(name: str, work: Callable[[], tuple[Any, str]]) -> tuple[Any, str]:
    return work()


def _describe(dataset: DatasetManifest) -> str:
    rows = ", ".join(f"{dataset.splits[name].num_rows:,} {name}" for name in SPLITS)
    return f"Data set {dataset.digest[:12]}: {rows} samples."
