"""Shards that are not what was published are never read, whatever they are."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import DatasetManifest, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.local_store import LocalStore
from tasks.data.shard import SHARD_SCHEMA, ShardFile
from tests.helpers.datasets import GROUP_ROWS, publish_small_dataset
from training.data.order import RowOrder
from training.data.reading import SampleReader
from training.data.samples import Samples

ROWS = 150
ORDER = RowOrder(ROWS, GROUP_ROWS)
FLIPPED_BITS = 60


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", ROWS)


def read(store: LocalStore, dataset: DatasetManifest, folder: Path, split: str = "train") -> Samples:
    """All rows of a split, with nothing kept from before."""
    shutil.rmtree(folder, ignore_errors=True)
    rows = dataset.splits[split].num_rows
    return SampleReader(store, dataset, split, folder).read(RowOrder(rows, GROUP_ROWS), 0, rows)


def path_of(store: LocalStore, dataset: DatasetManifest, shard: int = 0, split: str = "train") -> Path:
    return store.fetch(dataset_key(dataset.digest, dataset.splits[split].shards[shard].name))


def with_other_labels(path: Path) -> pa.Table:
    table = pq.read_table(path)
    labels = np.asarray(table.column("label"))
    return table.set_column(1, SHARD_SCHEMA.field("label"), pa.array((labels + 1) % 3, pa.int32()))


def replaced_by_plain_parquet(path: Path, _neighbour: Path, _of_another_data_set: Path) -> None:
    pq.write_table(with_other_labels(path), path, row_group_size=GROUP_ROWS, write_page_checksum=True)


def replaced_by_a_shard_of_ours(path: Path, _neighbour: Path, _of_another_data_set: Path) -> None:
    table = with_other_labels(path).combine_chunks()
    with ShardFile(path, GROUP_ROWS) as shard:
        shard.write(table)


def replaced_by_one_of_another_data_set(path: Path, _neighbour: Path, of_another_data_set: Path) -> None:
    shutil.copyfile(of_another_data_set, path)


def exchanged_with_its_neighbour(path: Path, neighbour: Path, _of_another_data_set: Path) -> None:
    own, other = path.read_bytes(), neighbour.read_bytes()
    path.write_bytes(other)
    neighbour.write_bytes(own)


def with_another_footer(path: Path, _neighbour: Path, _of_another_data_set: Path) -> None:
    """Another name of what is kept there for Arrow alone: for Parquet nothing is wrong with it."""
    content = path.read_bytes()
    assert content.count(b"ARROW:schema") == 1
    path.write_bytes(content.replace(b"ARROW:schema", b"arrow:schema"))


REPLACEMENTS = [
    replaced_by_plain_parquet,
    replaced_by_a_shard_of_ours,
    replaced_by_one_of_another_data_set,
    exchanged_with_its_neighbour,
    with_another_footer,
]


@pytest.mark.parametrize(
    ("split", "replace"), [*(("train", replace) for replace in REPLACEMENTS), ("validation", REPLACEMENTS[1])]
)
def test_a_shard_that_was_replaced_is_one_error_that_names_it_and_says_what_to_do(
    store: LocalStore,
    dataset: DatasetManifest,
    tmp_path: Path,
    split: str,
    replace: Callable[[Path, Path, Path], None],
) -> None:
    read(store, dataset, tmp_path / "samples", split)
    path = path_of(store, dataset, 0, split)
    other = publish_small_dataset(store, tmp_path / "other", ROWS, kind="binary")
    replace(path, path_of(store, dataset, 1), path_of(store, other))
    with pytest.raises(CorruptObjectError) as caught:
        read(store, dataset, tmp_path / "samples", split)
    assert str(path) in str(caught.value)
    assert "is not what was published with the data set: SHA-256" in str(caught.value)
    assert f"Run `holdfast scrub` with the store's address {store.address}" in str(caught.value)


def flipped(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The content with one bit of it flipped, many times."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(FLIPPED_BITS):
        place = chosen.randrange(4, len(content))  # the magic bytes at the beginning are read by nobody
        yield place, content[:place] + bytes([content[place] ^ 1 << chosen.randrange(8)]) + content[place + 1 :]


def test_no_flipped_bit_of_a_shard_is_missed(store: LocalStore, tmp_path: Path) -> None:
    """The checksum of a page leaves out the page's own header."""
    dataset = publish_small_dataset(store, tmp_path / "work", ROWS)
    path = path_of(store, dataset)

    for place, content in flipped(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CorruptObjectError, match=dataset.splits["train"].shards[0].name):
            print(place, read(store, dataset, tmp_path / "samples").rows[:1])


def test_a_shard_that_is_replaced_while_it_is_read_is_noticed_at_its_next_row_group(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    """Its footer is known by then."""
    reader = SampleReader(store, dataset, "train", tmp_path / "samples")
    reader._row_groups._load_footers({0})
    path = path_of(store, dataset)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptObjectError, match=r"^Row group 0 of .*is not what was published with the data set: SHA"):
        reader.read(ORDER, 0, 1)


def test_a_footer_that_was_damaged_where_it_is_kept_is_read_from_the_store_again(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    folder = tmp_path / "samples"
    expected = read(store, dataset, folder)
    for path in folder.glob("*.footer"):
        path.write_bytes(path.read_bytes()[:-1])
    for path in folder.glob("train-samples-*"):
        path.unlink()
    found = SampleReader(store, dataset, "train", folder).read(ORDER, 0, ROWS)
    assert np.array_equal(found.labels, expected.labels)
