"""The manifest of a prepared data set: whole, or noticed."""

from pathlib import Path

import pytest

from storage.datasets import dataset_key, dataset_sha256, find_dataset, load_dataset, publish_dataset, read_dataset_file
from storage.errors import CorruptObjectError, IncompatibleRunError
from storage.objects.digests import canonical_json
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_anew, publish_small_dataset


def test_every_flipped_bit_of_a_data_sets_manifest_is_noticed(tmp_path: Path) -> None:
    """A statistic that is another one would make another model, without a word."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    path = store.fetch(dataset_key(dataset.digest, "dataset.json"))
    original = path.read_bytes()
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises((CorruptObjectError, IncompatibleRunError)):
            find_dataset(store, dataset.digest)
    path.write_bytes(original)
    assert find_dataset(store, dataset.digest) == dataset


def test_a_data_set_of_another_format_is_said_to_be_that(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work").model_copy(update={"format": 2})
    publish_anew(store, dataset)
    with pytest.raises(IncompatibleRunError, match="has format 2"):
        find_dataset(store, dataset.digest)
    store.write(dataset_key(dataset.digest, "dataset.json"), canonical_json(dataset.model_dump(mode="json")))
    with pytest.raises(IncompatibleRunError, match="has format 2"):
        find_dataset(store, dataset.digest)


def test_a_data_set_that_was_made_again_to_other_bytes_is_not_the_one_that_is_asked_for(tmp_path: Path) -> None:
    """The digest is of the inputs alone: other versions of the libraries may make other tokens under the same one."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    before = dataset_sha256(store, dataset.digest)
    assert load_dataset(store, dataset.digest, before) == dataset
    publish_dataset(store, dataset)
    assert load_dataset(store, dataset.digest, before) == dataset
    publish_anew(store, dataset.model_copy(update={"versions": {"duckdb": "99.0", "numpy": "1"}}))
    words = rf"{before[:16]}\.\.\., found .* now duckdb 99\.0, numpy 1\. .* Restore the folder from a backup"
    with pytest.raises(IncompatibleRunError, match=words):
        load_dataset(store, dataset.digest, before)
    assert load_dataset(store, dataset.digest).versions["duckdb"] == "99.0"


def test_of_two_that_publish_under_one_digest_the_second_takes_what_is_there(tmp_path: Path) -> None:
    """A run may read it by then."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    before = dataset_sha256(store, dataset.digest)
    assert publish_dataset(store, dataset.model_copy(update={"versions": {"duckdb": "99.0"}})) == dataset
    assert dataset_sha256(store, dataset.digest) == before


def test_a_file_of_a_data_set_that_was_changed_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    shard = dataset.splits["train"].shards[0]
    data = read_dataset_file(store, dataset, shard)
    store.write(dataset_key(dataset.digest, shard.name), data[:-1])
    with pytest.raises(CorruptObjectError, match=rf"{shard.name} was changed after it was written\. `holdfast scrub`"):
        read_dataset_file(store, dataset, shard)
