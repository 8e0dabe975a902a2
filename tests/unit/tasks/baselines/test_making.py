"""A linear model of a data set: what it finds is a function of the data, within bounds, and never fails a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.datasets import DatasetManifest, SplitRecord, dataset_key
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.baseline import record_baseline
from tasks.baselines.limits import MAX_CLASSES, Limits, NoBaselineError
from tasks.baselines.making import make_baseline
from tasks.baselines.record import baseline_key, find_baseline
from tasks.run_paths import RunPaths
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.runs import make_run

UNLIMITED = Limits(seconds=None)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def find(store: LocalStore, dataset: DatasetManifest, limits: Limits = UNLIMITED) -> dict[str, Any]:
    return make_baseline(store, dataset, store.root.parent, limits)


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("multiclass", {"accuracy": 0.9, "macro_f1": 0.9}),
        ("binary", {"auc": 0.97, "accuracy": 0.9, "macro_f1": 0.9}),
        # A second label cannot be read off the tokens, so no model predicts all.
        ("multilabel", {"mean_average_precision": 0.6, "micro_f1": 0.4, "macro_f1": 0.4, "exact_match": 0.1}),
    ],
)
def test_what_tokens_tell_is_learnt(store: LocalStore, tmp_path: Path, kind: str, least: dict[str, float]) -> None:
    found = find(store, publish_small_dataset(store, tmp_path / "shards", kind=kind))
    assert found["metrics"].keys() == least.keys()
    assert {name: value for name, value in found["metrics"].items() if value < least[name]} == {}
    assert (found["num_rows"], found["num_train_rows"], found["num_test_rows"]) == (300, 300, 64)


def test_the_same_data_give_the_same_figures(store: LocalStore, tmp_path: Path) -> None:
    dataset = publish_small_dataset(store, tmp_path / "shards")
    np.random.seed(7)
    first = find(store, dataset)
    np.random.seed(8)
    assert find(store, dataset, Limits(seconds=1e9)) == first


def test_metadata_columns_are_not_looked_at(store: LocalStore, tmp_path: Path) -> None:
    found = [
        find(store, publish_small_dataset(store, tmp_path / f"shards-{with_them}", metadata=with_them))
        for with_them in (True, False)
    ]
    assert found[0] == found[1]


def test_of_too_many_rows_the_first_are_taken_and_the_record_says_how_many(store: LocalStore, tmp_path: Path) -> None:
    dataset = publish_small_dataset(store, tmp_path / "shards")
    cut = find(store, dataset, Limits(rows=64, seconds=None))
    alone = find(store, publish_small_dataset(store, tmp_path / "alone", rows=64))
    assert (cut["num_rows"], cut["num_train_rows"]) == (64, 300)
    assert cut == alone | {"num_train_rows": 300}
    assert cut["metrics"] != find(store, dataset)["metrics"]


def test_many_classes_and_long_rows_take_fewer_rows(store: LocalStore, tmp_path: Path) -> None:
    dataset = publish_small_dataset(store, tmp_path / "shards")
    by_counts, by_products = Limits(counts=1000, seconds=None), Limits(products=3000, seconds=None)
    assert find(store, dataset, by_counts) == find(store, dataset, by_products)  # of three classes
    assert 16 < find(store, dataset, by_counts)["num_rows"] < 100


def test_when_the_time_is_over_there_are_no_figures_and_the_reason_is_final(store: LocalStore, tmp_path: Path) -> None:
    dataset = publish_small_dataset(store, tmp_path / "shards")
    with pytest.raises(NoBaselineError, match="not ready after 0 s"):
        find(store, dataset, Limits(seconds=0))
    run_paths = paths_of(store)
    found = record_baseline(run_paths, run_paths.manifest.load_head().state, dataset, Limits(seconds=0))
    assert found["metrics"] is None and found["is_final"] and "not ready after 0 s" in found["reason"]


def test_what_was_found_is_recorded_and_not_computed_again(store: LocalStore, tmp_path: Path) -> None:
    dataset, run_paths = publish_small_dataset(store, tmp_path / "shards"), paths_of(store)
    state = run_paths.manifest.load_head().state
    assert find_baseline(store, state) is None
    found = record_baseline(run_paths, state, dataset, UNLIMITED)
    assert find_baseline(store, state) == found
    written = (store.root / baseline_key(state.run)).read_bytes()
    assert record_baseline(run_paths, state, dataset, Limits(seconds=0)) == found
    assert (store.root / baseline_key(state.run)).read_bytes() == written
    assert find_baseline(store, state.model_copy(update={"dataset_sha256": "of another data set"})) is None


def test_a_shard_that_cannot_be_read_is_a_reason_and_is_tried_again(store: LocalStore, tmp_path: Path) -> None:
    dataset, run_paths = publish_small_dataset(store, tmp_path / "shards"), paths_of(store)
    state = run_paths.manifest.load_head().state
    shard = store.root / dataset_key(dataset.digest, dataset.splits["test"].shards[0].name)
    sound = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    found = record_baseline(run_paths, state, dataset, UNLIMITED)
    assert found["metrics"] is None and shard.name in found["reason"] and not found["is_final"]
    shard.write_bytes(sound)
    assert record_baseline(run_paths, state, dataset, UNLIMITED)["metrics"] is not None


def test_an_error_that_nobody_thought_of_is_a_reason_too(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, run_paths = publish_small_dataset(store, tmp_path / "shards"), paths_of(store)

    def fail(*_: object) -> None:
        raise MemoryError("unable to allocate 9 GiB")

    monkeypatch.setattr("tasks.baselines.making.fit_logistic", fail)
    found = record_baseline(run_paths, run_paths.manifest.load_head().state, dataset, UNLIMITED)
    assert "MemoryError: unable to allocate 9 GiB" in found["reason"]


def test_a_split_without_rows_and_too_many_classes_are_said(store: LocalStore, tmp_path: Path) -> None:
    dataset = publish_small_dataset(store, tmp_path / "shards")
    empty = SplitRecord(num_rows=0, num_tokens=0, shards=[])
    with pytest.raises(NoBaselineError, match="the test split has no rows"):
        find(store, dataset.model_copy(update={"splits": dataset.splits | {"test": empty}}))
    names = [str(number) for number in range(MAX_CLASSES + 1)]
    many = dataset.target.model_copy(update={"classes": names})
    with pytest.raises(NoBaselineError, match="too long for 501 classes"):
        find(store, dataset.model_copy(update={"target": many}))


def paths_of(store: LocalStore) -> RunPaths:
    manifest: Manifest = make_run(store)
    return RunPaths(store, manifest, store.root / "scratch", store.root / "scratch/data")
