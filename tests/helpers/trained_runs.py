"""A run that was prepared, trained, promoted and evaluated for real, but without Prefect and agents: in seconds."""

from typing import Any

from storage.checkpoints.results import find_evaluation
from storage.datasets import DatasetManifest, dataset_sha256
from storage.objects.local_store import LocalStore
from storage.runs.retention import find_best
from storage.runs.run_records import TestedRecord
from storage.runs.run_state import RunState, SegmentRecord
from storage.runs.transitions import end_evaluation, end_segment, record_metrics
from tasks.configuration.run import RunConfig
from tasks.data.pipeline import prepare_dataset
from tasks.models.brought import pin_brought
from tasks.promotion.promotion import promote_checkpoint
from tasks.recover import find_start
from tasks.run_paths import RunPaths, open_run_paths
from tasks.supervision.launch import hold_lease, specify_segment
from tests.helpers.processes import RankProcesses, evaluate_as_a_rank
from tests.helpers.runs import find_complete_checkpoints


def train_run(config: RunConfig) -> tuple[LocalStore, DatasetManifest]:
    """The store of the run when it is complete, and its data set."""
    config, run_paths = pin_brought(config), open_run_paths(config)
    store = run_paths.store
    assert isinstance(store, LocalStore)
    dataset = prepare_dataset(config.data, store, run_paths.data_scratch)
    values: dict[str, Any] = config.model_dump(mode="json")
    run_paths.manifest.create(
        RunState(
            run=config.run, created_at=1.0, config=values, dataset_digest=dataset.digest,
            dataset_sha256=dataset_sha256(store, dataset.digest), steps_total=config.train.num_steps,
            start=find_start(config, dataset, run_paths),
        )
    )  # fmt: skip
    _train(config, run_paths, store)
    _evaluate(config, run_paths)
    return store, dataset


def _train(config: RunConfig, run_paths: RunPaths, store: LocalStore) -> None:
    state = hold_lease(config, run_paths, "train").state
    spec = specify_segment(config, run_paths, state)
    spec.scratch_folder.mkdir(parents=True)
    assert not any(RankProcesses(spec).run()), (spec.scratch_folder / "ranks.log").read_text()
    for found in reversed(find_complete_checkpoints(store, config.run, spec.fence)):
        promote_checkpoint(config, run_paths, found.path, found.digest)
    steps = config.train.num_steps
    record = SegmentRecord(
        fence=spec.fence, outcome="completed", cause="", first_step=0, last_step=steps, world_size=spec.train.ranks,
        planned_steps=1000, started_at=0.0,
        seconds=1.0, steps_lost=0, phases={},
    )  # fmt: skip
    run_paths.manifest.commit("ended", end_segment(record))


def _evaluate(config: RunConfig, run_paths: RunPaths) -> None:
    state = hold_lease(config, run_paths, "evaluate").state
    spec = specify_segment(config, run_paths, state)
    spec.scratch_folder.mkdir(parents=True)
    assert not any(RankProcesses(spec, evaluate_as_a_rank).run()), (spec.scratch_folder / "ranks.log").read_text()
    evaluation, best = find_evaluation(run_paths.store, state.promoted), find_best(state)
    assert evaluation is not None and best is not None
    tested, metrics = None, evaluation["metrics"]
    if best != state.promoted:
        found = find_evaluation(run_paths.store, best)
        assert found is not None
        tested = TestedRecord(step=best.step, path=best.path, metrics=found["metrics"])
    run_paths.manifest.commit("ended", end_evaluation(spec.fence))
    run_paths.manifest.commit("evaluated", record_metrics(metrics, config.train.num_steps, tested))
