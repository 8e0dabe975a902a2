"""One of a run's kept checkpoints, evaluated by ranks of this machine, while the run trains or not.

Invariant: the run is not disturbed: no lease, no generation of its manifest, and what is read stays until it was read.
The numbers are those of the run's own evaluation, since the ranks do the same.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.checkpoints.reading import holding
from storage.checkpoints.results import (
    calibration_key,
    evaluation_key,
    find_calibration,
    find_evaluation,
    write_result,
)
from storage.datasets import load_dataset
from storage.errors import (
    ConfigurationError,
    CorruptObjectError,
    HoldfastError,
    IncompatibleRunError,
    ObjectUnreadableError,
    SegmentFailedError,
    StoreError,
)
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks
from tasks.cluster.specification import make_specification, resume_point
from tasks.config.changes import as_begun, read_stored
from tasks.config.load import change_values, configure
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.console.terminal import console
from tasks.data.units.working_folders import working_folder
from tasks.models.choice import choose_checkpoint
from tasks.models.labelled_table import SPLIT, LabelledTable, prepare_table
from tasks.models.own_code import require_factory, require_same_module, stored_values
from tasks.run_paths import open_run_paths, require_scratch
from training.spec import AdHocEvaluation, SegmentSpec

RESULT_FILE = "result.json"
LOG_LINES_SHOWN = 15
DECIDE_NO_NUMBER = {"ranks", "share_gpus", "device"}
# Messages of ranks for people; anything else of theirs is a traceback in the log.
KINDS = {
    kind.__name__: kind
    for kind in (ConfigurationError, CorruptObjectError, IncompatibleRunError, ObjectUnreadableError, StoreError)
}


def evaluate_checkpoint(
    store: Store, run: str, choice: str, split: str, source: str | None = None, assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """The results of the checkpoint that `choice` names, JSON-able: on a split of the run's data set, or on `source`.

    `assignments` change the run's stored configuration for this one call. On the test split a calibration comes with
    it, and is left beside the checkpoint's evaluation in the store if there is none. Raises `RunMissingError`,
    `ConfigurationError`, `ContractError`, `CorruptObjectError` if the checkpoint is damaged, `SegmentFailedError`.
    """
    manifest = Manifest(store, run)
    state = manifest.load_head().state
    config = _configure(state, store, assignments)
    choose_checkpoint(state, choice)  # a mistake is raised before anything takes long
    run_paths = open_run_paths(config)
    require_scratch(run_paths)
    with working_folder(run_paths.data_scratch) as folder:
        table = None if source is None else _prepare(source, config, manifest, folder)
        with holding(manifest, lambda state: choose_checkpoint(state, choice)) as (state, record):
            announce(f"Evaluating the checkpoint of step {record.step:,} on {source or f'the {split} split'}.")
            spec = make_specification(
                config,
                run_paths,
                state,
                "evaluate",
                scratch=folder / "ranks",
                fence=record.fence,
                resume=resume_point(record),
            )
            spec = _of_split(spec, folder, split) if table is None else _of_table(spec, folder, table)
            found = _run_ranks(spec, config.segment.grace_seconds)
    if found["calibration"] is not None and _is_computed_as_in_the_run(config, state):
        _keep(store, record, found)
    about = {"run": run, "address": run_address(store, run), "checkpoint": f"{store.address}/{record.path}"}
    data = {"split": None, "source": source} if source is not None else {"split": split, "source": None}
    evaluation: dict[str, Any] = found["evaluation"]
    return about | {"slices": []} | evaluation | data | {"calibration": found["calibration"]}


def _configure(state: RunState, store: Store, assignments: Sequence[str]) -> RunConfig:
    """The run's own configuration with one rank on this machine, unless an assignment asks for more."""
    values = stored_values(state) | {"store": store.address, "cluster": {}}
    values["train"] = values["train"] | {"ranks": 1}
    changed = change_values(values, assignments) | {"store": store.address, "cluster": {}}
    require_factory(changed, state.run)
    config = as_begun(configure(RunConfig, changed, f"configuration of run {state.run!r}"), state)
    require_same_module(config)
    return config


def _prepare(source: str, config: RunConfig, manifest: Manifest, folder: Path) -> LabelledTable:
    state = manifest.load_head().state
    dataset = load_dataset(manifest.store, state.dataset_digest, state.dataset_sha256)
    with console.status(f"preparing {source} as the run's data set was"):
        prepared = folder / "table"
        prepared.mkdir()
        return prepare_table(source, config.data, dataset, manifest.store, prepared)


def _of_split(spec: SegmentSpec, folder: Path, split: str) -> SegmentSpec:
    return spec.model_copy(update={"ad_hoc": AdHocEvaluation(split=split, result_file=str(folder / RESULT_FILE))})


def _of_table(spec: SegmentSpec, folder: Path, table: LabelledTable) -> SegmentSpec:
    ad_hoc = AdHocEvaluation(split=SPLIT, result_file=str(folder / RESULT_FILE), data=table.store)
    data = {"dataset_digest": table.digest, "dataset_sha256": table.sha256}
    return spec.model_copy(update={**data, "ad_hoc": ad_hoc})


def _is_computed_as_in_the_run(config: RunConfig, state: RunState) -> bool:
    """Whether nothing was set for this call that changes what comes out by more than last bits, or adds to it."""
    own = as_begun(RunConfig.model_validate(read_stored(state.config)), state)
    before, now = (one.train.model_dump(exclude=DECIDE_NO_NUMBER) for one in (own, config))
    asked = own.validation, config.validation
    is_same_evaluation = all(len({tuple(getattr(one, name)) for one in asked}) == 1 for name in ("slices", "metrics"))
    where = {"name", "factory"}  # what a user brought is, which no number depends on: what it was is pinned
    models = [one.model.model_dump(exclude=where) for one in (own, config)]
    return bool(models[0] == models[1] and before == now and is_same_evaluation)


def _run_ranks(spec: SegmentSpec, grace_seconds: float) -> dict[str, Any]:
    """What the ranks found. Raises their error, or `SegmentFailedError` with the end of their log."""
    assert spec.ad_hoc is not None
    with Ranks(spec, grace_seconds) as ranks, console.status("evaluating"):
        while ranks.is_running(POLL_SECONDS):
            pass
    try:
        found: dict[str, Any] = json.loads(Path(spec.ad_hoc.result_file).read_bytes())
    except FileNotFoundError:
        lines = "\n".join(ranks.read_log().splitlines()[-LOG_LINES_SHOWN:])
        raise SegmentFailedError(
            f"The evaluation ended without a result. The last lines of its log:\n{lines}"
        ) from None
    if "error" in found:
        raise KINDS.get(found["kind"], HoldfastError)(found["error"])
    return found


def _keep(store: Store, record: CheckpointRecord, found: Mapping[str, Any]) -> None:
    """For an export of this checkpoint: what was found on the run's own test split, unless that is known already.

    The evaluation last, as the run's own. A store that cannot be written is no reason to have no result.
    """
    with suppress(StoreError):
        if find_calibration(store, record) is None:
            write_result(store, calibration_key(record.path), found["calibration"])
        if find_evaluation(store, record) is None:
            write_result(store, evaluation_key(record.path), found["evaluation"])
