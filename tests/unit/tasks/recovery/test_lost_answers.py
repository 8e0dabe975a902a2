"""Whatever `Retry` makes again ends as if it had been made once, whichever answer of the store is lost."""

import inspect
import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage.backoff import Backoff
from storage.errors import CheckpointUnusableError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import JobRecord, Lease, RunState
from storage.runs.transitions import promote, take_lease
from tasks import recover as recovering
from tasks import remember_overrides as remember
from tasks import retrying
from tasks import roll_back as by_hand
from tasks.config.changes import as_begun
from tasks.configuration.run import RunConfig
from tasks.models.start_files import put_start
from tasks.promotion.promotion import promote_checkpoint
from tasks.recover import recover
from tasks.recovery import taking_over
from tasks.recovery.settle import settle_evaluation
from tasks.recovery.taking_over import begin_watch, goes_on_as_it_is
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.supervision.launch import hold_lease
from tasks.verification import quarantine as quarantines
from tests.helpers.cut_off_stores import StoreLosingAnswers
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.holders import dead_process
from tests.helpers.runs import BATCH_SIZE, make_checkpoint, record_of

Act = Callable[[RunConfig, RunPaths], object]
OF_ONE_MOMENT = {"created_at", "taken_at", "started_at", "quarantined_at", "rolled_back_at", "promoted_at", "store"}


def config_of(folder: Path, **train: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": "run",
            "store": str(folder / "store"),
            "scratch": str(folder / "scratch"),
            "data": {"text": "t", "label": "l", "kind": "binary"},
            "train": {"batch_size": BATCH_SIZE, "steps": 100} | train,
        }
    )


def take_up(config: RunConfig, run_paths: RunPaths) -> None:
    inspect.unwrap(recover)(config, DATASETS[run_paths.store.address])


def take_up_with_more_steps(config: RunConfig, run_paths: RunPaths) -> None:
    take_up(config.model_copy(update={"train": config.train.model_copy(update={"steps": 150})}), run_paths)


def take_a_lease(config: RunConfig, run_paths: RunPaths) -> None:
    take_up(config, run_paths)
    Retry(config.retry).call("Taking the lease", lambda: hold_lease(config, run_paths, "train"))


def evaluate(config: RunConfig, run_paths: RunPaths) -> None:
    take_up(config, run_paths)
    head = Retry(config.retry).call("Taking the lease", lambda: hold_lease(config, run_paths, "evaluate"))
    lease = head.state.lease
    assert lease is not None
    Retry(config.retry).call("Ending it", lambda: settle_evaluation(config, run_paths, lease))


def roll_back(config: RunConfig, run_paths: RunPaths) -> None:
    config = as_begun(config, run_paths.manifest.load_head().state)
    inspect.unwrap(by_hand.roll_back)(config, 10, "flow run 1234")


def give(config: RunConfig, run_paths: RunPaths) -> None:
    config = as_begun(config, run_paths.manifest.load_head().state)
    inspect.unwrap(remember.remember_overrides)(config, {"train.steps": 120})


def take_out_of_use(config: RunConfig, run_paths: RunPaths) -> None:
    kept = run_paths.manifest.load_head().state.promoted
    lease = run_paths.manifest.load_head().state.lease
    assert kept is not None and lease is not None
    damaged = CheckpointUnusableError("a flipped bit", "damaged")
    Retry(config.retry).call(
        "Taking out of use", lambda: quarantines.take_out_of_use(run_paths, kept.step, kept.path, damaged, lease.fence)
    )


DATASETS: dict[str, Any] = {}
ACTS: dict[str, tuple[bool, Act]] = {  # whether the run was begun before
    "a new run": (False, take_up),
    "a segment that was lost": (True, take_up),
    "a changed configuration": (True, take_up_with_more_steps),
    "a lease": (True, take_a_lease),
    "an evaluation": (True, evaluate),
    "a rollback by hand": (True, roll_back),
    "a value that was given": (True, give),
    "a checkpoint quarantined": (True, take_out_of_use),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without a step that Prefect's server would be told of."""
    monkeypatch.setattr(retrying, "BACKOFF", Backoff(first_seconds=0.001, limit_seconds=60.0))
    for module in (recovering, by_hand, remember):
        monkeypatch.setattr(module, "promote", promote_checkpoint)


def prepare(folder: Path, has_begun: bool) -> RunConfig:
    """A store with a data set and, if it has begun, a run whose segment died: steps 10 and 20 are kept, 30 is not."""
    config = config_of(folder)
    store = LocalStore(folder / "store")
    DATASETS[store.address] = publish_small_dataset(store, folder / "work")
    if has_begun:
        run_paths = open_run_paths(config)
        take_up(config, run_paths)
        head = run_paths.manifest.commit("segment began", take_lease(dead_process(), 1))
        assert head.state.lease is not None
        for step in (10, 20, 30):
            found = make_checkpoint(store, folder / "files", step, head.state.lease.fence)
            if step < 30:
                run_paths.manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=9)))
    return config


def act_with(monkeypatch: pytest.MonkeyPatch, config: RunConfig, act: Act, at: int) -> tuple[Any, StoreLosingAnswers]:
    """The state after `act`, with the answer to the store's n-th write lost, and the store."""
    whole = open_run_paths(config)
    store: Any = StoreLosingAnswers(LocalStore(Path(config.store)), at)
    run_paths = replace(whole, store=store, manifest=replace(whole.manifest, store=store))
    for module in (recovering, by_hand, remember):
        monkeypatch.setattr(module, "open_run_paths", lambda _config: run_paths)
    act(config, run_paths)
    return without_moments(whole.manifest.load_head().state), store


def without_moments(state: RunState) -> Any:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(one) for name, one in value.items() if name not in OF_ONE_MOMENT | {"scratch"}}
        return [strip(one) for one in value] if isinstance(value, list) else value

    return strip(state.model_dump(mode="json"))


@pytest.mark.parametrize("what", ACTS)
def test_an_operation_of_which_any_answer_is_lost_ends_as_if_none_was(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, act = ACTS[what]
    prepare(tmp_path / "template", has_begun)
    expected: Any = None
    for at in itertools.count():  # of the first time no answer is lost
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "template", folder)
        config = config_of(folder)
        DATASETS[config.store] = DATASETS[str(tmp_path / "template" / "store")]
        state, store = act_with(monkeypatch, config, act, at)
        expected = expected or state
        if at > store.num_writes:
            break
        assert _without_fence(state) == _without_fence(expected), f"the answer to write {at} was lost"
    assert at > 1


def _without_fence(state: Any) -> Any:
    """A generation that was committed twice moves the fence of the lease that comes after it."""
    lease = state["lease"]
    return state if lease is None else state | {"lease": lease | {"fence": None}}


def test_first_weights_of_which_any_answer_is_lost_or_that_were_cut_off_are_brought_again(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (folder / name).write_bytes(name.encode() * 100)
    provenance = {"step": 5, "weights_sha256": "a" * 64}
    for at in (1, 2, 3):
        whole = LocalStore(tmp_path / f"store-{at}")
        store: Any = StoreLosingAnswers(whole, at)
        config = config_of(tmp_path)
        run_paths = replace(open_run_paths(config), store=store)
        files = sorted(folder.iterdir())
        bring = partial(put_start, files, [], run_paths, "origin", 5, "a" * 64, provenance)
        record = Retry(config.retry).call("Taking the run up", bring)
        assert store.num_writes == 3  # what is there already is not put again
        for path in folder.iterdir():
            assert sha256_of_file(whole.fetch(f"{record.path}/{path.name}")) == sha256_of_file(path)
        assert sorted(whole.list_keys(record.path)) == [
            f"{record.path}/{name}" for name in ("model-1.safetensors", "model-2.safetensors", "start.json")
        ]


def test_a_job_that_was_taken_over_with_a_lost_answer_is_not_asked_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_over, "is_under_way", lambda *_arguments: True)
    config = prepare(tmp_path / "template", has_begun=True)
    run_paths = open_run_paths(config)
    take_up(config, run_paths)
    head = run_paths.manifest.commit(
        "segment began", take_lease(dead_process(), 1, job=lambda _fence: JobRecord(kind="slurm", name="job"))
    )
    fence, num_segments = head.generation, len(head.state.segments)
    state, _store = act_with(monkeypatch, config, take_up, at=1)
    assert len(state["segments"]) == num_segments
    lease = run_paths.manifest.load_head().state.lease
    assert lease is not None and (lease.fence, lease.holder) == (fence, this_process())
    _require_left_once_watched(config, run_paths, lease)


def _require_left_once_watched(config: RunConfig, run_paths: RunPaths, lease: Lease) -> None:
    config = as_begun(config, run_paths.manifest.load_head().state)
    assert goes_on_as_it_is(config, run_paths, lease)
    begin_watch(run_paths, lease)
    assert not goes_on_as_it_is(config, run_paths, lease)  # an attempt of this process has asked it to end
