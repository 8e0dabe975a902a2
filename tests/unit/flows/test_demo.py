"""What `make demo` deletes: what it made itself, and nothing else."""

from pathlib import Path

import pytest

from flows.demo import MARKER, empty_store
from storage.errors import ConfigurationError


def test_a_store_that_the_demonstration_did_not_make_stays_as_it_is(tmp_path: Path) -> None:
    precious = tmp_path / "store" / "runs" / "mine" / "model"
    precious.parent.mkdir(parents=True)
    precious.write_text("weights")
    with pytest.raises(ConfigurationError, match=r"has files that `make demo` did not make.*Nothing was deleted"):
        empty_store(str(tmp_path / "store"))
    assert precious.read_text() == "weights"


def test_a_store_that_the_demonstration_made_is_emptied_by_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "demo" / "store"
    for _ in range(2):
        empty_store(str(store))
        assert [path.name for path in store.iterdir()] == [MARKER]
        (store / "runs" / "demo").mkdir(parents=True)
        (store / "probe").write_text("a file")


def test_what_a_link_in_the_store_points_to_is_not_the_stores(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("rows")
    empty_store(str(tmp_path / "store"))
    (tmp_path / "store" / "link").symlink_to(data)
    empty_store(str(tmp_path / "store"))
    assert (data / "rows").read_text() == "rows" and not (tmp_path / "store" / "link").exists()


def test_a_folder_that_is_empty_can_be_the_store(tmp_path: Path) -> None:
    empty_store(str(tmp_path))
    assert (tmp_path / MARKER).is_file()


def test_a_bucket_is_not_emptied(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a store in a folder"):
        empty_store("s3://bucket/prefix")
