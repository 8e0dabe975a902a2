"""Checkpoints in the store: complete or not there, and no changed byte is missed."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from storage.checkpoints.checkpoints import (
    INDEX_NAME,
    FoundCheckpoint,
    delete_checkpoint,
    fetch_model,
    hash_weights,
    list_checkpoint_paths,
    load_checkpoint,
    validate_for_promotion,
    verify_checkpoint,
)
from storage.checkpoints.tensor_files import find_non_finite, read_entries, weights_sha256
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.local_store import LocalStore
from tests.helpers.runs import BATCH_SIZE, find_complete_checkpoints, make_checkpoint, put_frozen


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def found(store: LocalStore, tmp_path: Path) -> FoundCheckpoint:
    return make_checkpoint(store, tmp_path / "save", step=10, fence=2)


def files_of(store: LocalStore, found: FoundCheckpoint) -> list[Path]:
    return [store.fetch(key) for key in store.list_keys(f"{found.path}/")]


def test_a_checkpoint_that_was_not_touched_is_valid(store: LocalStore, found: FoundCheckpoint) -> None:
    assert verify_checkpoint(store, found.path, found.digest) == found
    validate_for_promotion(found, store, BATCH_SIZE)


def test_every_single_flipped_byte_of_every_file_is_noticed(store: LocalStore, found: FoundCheckpoint) -> None:
    for path in files_of(store, found):
        original = path.read_bytes()
        for position in range(len(original)):
            path.write_bytes(original[:position] + bytes([original[position] ^ 0x10]) + original[position + 1 :])
            with pytest.raises(CorruptObjectError):
                verify_checkpoint(store, found.path, found.digest)
        path.write_bytes(original)
    verify_checkpoint(store, found.path, found.digest)


def test_every_truncation_and_every_added_byte_is_noticed(store: LocalStore, found: FoundCheckpoint) -> None:
    for path in files_of(store, found):
        original = path.read_bytes()
        for damaged in [original[:length] for length in range(0, len(original), 7)] + [original + b"\0"]:
            path.write_bytes(damaged)
            with pytest.raises(CorruptObjectError):
                verify_checkpoint(store, found.path, found.digest)
        path.write_bytes(original)


def test_a_missing_file_is_noticed_and_named(store: LocalStore, found: FoundCheckpoint) -> None:
    for path in files_of(store, found):
        original = path.read_bytes()
        path.unlink()
        with pytest.raises(ObjectUnreadableError, match=path.name):
            verify_checkpoint(store, found.path, found.digest)
        path.write_bytes(original)


def test_a_save_that_was_cut_off_before_its_index_is_never_found(
    store: LocalStore, found: FoundCheckpoint, tmp_path: Path
) -> None:
    cut_off = make_checkpoint(store, tmp_path / "save", step=20, fence=2)
    store.delete(f"{cut_off.path}/{INDEX_NAME}")
    assert find_complete_checkpoints(store, "run", fence=2) == [found]
    assert len(list_checkpoint_paths(store, "run")) == 2


def test_checkpoints_of_a_segment_are_found_newest_first_and_other_segments_are_left_out(
    store: LocalStore, tmp_path: Path
) -> None:
    for step, fence in ((5, 2), (15, 2), (25, 3)):
        make_checkpoint(store, tmp_path / "save", step, fence)
    assert [found.index.step for found in find_complete_checkpoints(store, "run", fence=2)] == [15, 5]


def test_a_checkpoint_moved_to_another_step_is_never_promoted(store: LocalStore, found: FoundCheckpoint) -> None:
    for key in list(store.list_keys(f"{found.path}/")):
        store.write(key.replace("000010-f", "000099-f"), store.read(key))
    moved = verify_checkpoint(store, found.path.replace("000010-f", "000099-f"))
    with pytest.raises(CorruptObjectError, match="holds the index of another checkpoint, of step 10"):
        validate_for_promotion(moved, store, BATCH_SIZE)


def test_values_that_are_not_finite_are_never_promoted(store: LocalStore, tmp_path: Path) -> None:
    for step, value in ((1, float("nan")), (2, float("inf"))):
        found = make_checkpoint(store, tmp_path / "save", step, fence=2, value=value)
        verify_checkpoint(store, found.path, found.digest)
        with pytest.raises(CorruptObjectError, match="not finite"):
            validate_for_promotion(found, store, BATCH_SIZE)


def test_a_cursor_that_disagrees_with_the_step_is_never_promoted(store: LocalStore, found: FoundCheckpoint) -> None:
    with pytest.raises(CorruptObjectError, match="cursor"):
        validate_for_promotion(found, store, BATCH_SIZE + 1)


def test_without_a_ledger_of_all_its_steps_nothing_is_promoted(
    store: LocalStore, found: FoundCheckpoint, tmp_path: Path
) -> None:
    for ledger in (None, make_checkpoint(store, tmp_path / "save", step=9, fence=2).index.ledger):
        changed = replace(found, index=found.index.model_copy(update={"ledger": ledger}))
        with pytest.raises(CorruptObjectError, match="ledger"):
            validate_for_promotion(changed, store, BATCH_SIZE)


def test_weights_that_stand_beside_the_checkpoints_are_verified_and_hashed_with_each(
    store: LocalStore, found: FoundCheckpoint, tmp_path: Path
) -> None:
    assert b"frozen" not in store.read(f"{found.path}/{INDEX_NAME}")
    frozen = put_frozen(store, tmp_path / "start")
    both = make_checkpoint(store, tmp_path / "save", step=20, fence=2, value=10, frozen=[frozen])
    assert verify_checkpoint(store, both.path, both.digest) == both == load_checkpoint(store, both.path)
    assert both.index.num_bytes == sum(file.num_bytes for file in both.index.files.values())
    whole = [*fetch_model(store, found), store.fetch(frozen.key)]
    assert fetch_model(store, both)[1:] == whole[1:]
    assert hash_weights(store, both) == weights_sha256(whole) != hash_weights(store, found)
    path = store.fetch(frozen.key)
    original = path.read_bytes()
    for position in range(len(original)):
        path.write_bytes(original[:position] + bytes([original[position] ^ 0x10]) + original[position + 1 :])
        with pytest.raises(CorruptObjectError, match=frozen.key):
            verify_checkpoint(store, both.path, both.digest)
    path.unlink()
    with pytest.raises(ObjectUnreadableError, match=frozen.key):
        verify_checkpoint(store, both.path, both.digest)
    verify_checkpoint(store, found.path, found.digest)


def test_a_deleted_checkpoint_is_gone_and_a_deletion_cut_off_leaves_none(
    store: LocalStore, found: FoundCheckpoint
) -> None:
    store.delete(f"{found.path}/{INDEX_NAME}")  # as far as a kill let it come
    with pytest.raises(ObjectUnreadableError, match="missing"):
        load_checkpoint(store, found.path)
    delete_checkpoint(store, found.path)
    assert list_checkpoint_paths(store, "run") == []


def test_the_hash_of_the_weights_is_over_the_tensors_and_not_over_the_file(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32), np.ones((2, 3), dtype=np.float64)
    save_file({"a": a, "b": b}, tmp_path / "one")
    save_file({"b": b, "a": a}, tmp_path / "two", metadata={"written": "later"})
    assert weights_sha256([tmp_path / "one"]) == weights_sha256([tmp_path / "two"])
    save_file({"a": a.reshape(2, 3), "b": b}, tmp_path / "shape")
    save_file({"c": a, "b": b}, tmp_path / "name")
    assert len({weights_sha256([tmp_path / name]) for name in ("one", "shape", "name")}) == 3
    save_file({"a": a}, tmp_path / "first")
    save_file({"b": b}, tmp_path / "second")
    assert weights_sha256([tmp_path / "second", tmp_path / "first"]) == weights_sha256([tmp_path / "one"])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_one_value_that_is_not_finite_is_found_among_many(tmp_path: Path, dtype: type) -> None:
    values: NDArray[Any] = np.ones(10_000, dtype=dtype)
    values[0] = np.finfo(dtype).max
    save_file({"fine": values, "numbers": np.arange(3)}, tmp_path / "file")
    assert find_non_finite(tmp_path / "file") is None
    values[7777] = np.nan
    save_file({"fine": np.ones(3, dtype=dtype), "bad": values}, tmp_path / "file")
    assert find_non_finite(tmp_path / "file") == "bad"
    assert find_non_finite(tmp_path / "file", ["bad"]) is None  # a constant of the model's, such as a mask


def test_a_file_that_only_looks_like_tensors_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.arange(6, dtype=np.float32)}, tmp_path / "file")
    original = (tmp_path / "file").read_bytes()
    generator = random.Random(0)
    for _ in range(300):
        size = generator.randrange(len(original))
        (tmp_path / "file").write_bytes(original[:size])
        with pytest.raises(CorruptObjectError):
            read_entries(tmp_path / "file")
