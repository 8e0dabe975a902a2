"""What units of a preparation leave: sealed, whole or not there, and removed when nobody will finish it."""

from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tasks.data.units import staging as area_module
from tasks.data.units.staging import (
    ABANDONED_SECONDS,
    FolderStaging,
    StagingArea,
    StoreStaging,
    begin_staging,
    remove_staging,
)


@pytest.fixture(params=["store", "folder"])
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> StagingArea:
    if request.param == "folder":
        return FolderStaging(tmp_path / "staging")
    return StoreStaging(LocalStore(tmp_path / "store"), "key")


def test_a_record_and_its_files_are_found_again(staging: StagingArea, tmp_path: Path) -> None:
    path = tmp_path / "under way"
    path.write_bytes(b"0123456789")
    assert staging.find("unit") is None
    staging.keep("unit", {"rows": [1, 2]}, {"unit.parts": path})
    assert staging.find("unit") == {"rows": [1, 2]}
    assert staging.fetch("unit.parts").read_bytes() == b"0123456789"
    assert staging.read_range("unit.parts", 3, 6) == b"345"
    assert staging.address_of("unit.parts").endswith("unit.parts")
    assert not path.exists()


@pytest.mark.parametrize("position", [0, 10, -2])
def test_a_record_with_another_byte_counts_as_none(tmp_path: Path, position: int) -> None:
    store = LocalStore(tmp_path / "store")
    staging = StoreStaging(store, "key")
    staging.keep("unit", {"rows": [1, 2]}, {})
    (key,) = store.list_keys("preparations/")
    content = bytearray(store.read(key))
    content[position] ^= 1
    store.write(key, bytes(content))
    assert staging.find("unit") is None


def test_files_that_a_killed_unit_left_are_replaced(tmp_path: Path) -> None:
    staging, path = StoreStaging(LocalStore(tmp_path / "store"), "key"), tmp_path / "under way"
    staging.store.write("preparations/key/unit.parts", b"half of")
    path.write_bytes(b"all of it")
    staging.keep("unit", {}, {"unit.parts": path})
    assert staging.fetch("unit.parts").read_bytes() == b"all of it"


def test_what_was_begun_two_weeks_ago_and_never_finished_is_removed(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "under way"
    path.write_bytes(b"x")
    first, second, third = (StoreStaging(store, key) for key in ("first", "second", "third"))
    begin_staging(first, now=0.0)
    first.keep("unit", {}, {"unit.parts": path})
    begin_staging(second, now=ABANDONED_SECONDS - 1)
    assert first.find("unit") == {}
    begin_staging(third, now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("")} == {"second", "third"}


def test_what_is_left_where_a_removal_was_killed_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    staging = StoreStaging(store, "first")
    begin_staging(staging, now=0.0)
    for number in range(5):
        staging.keep(f"unit-{number}", {}, {})
    delete, deleted = store.delete, list[str]()

    def die_at_the_third(key: str) -> None:
        if len(deleted) == 2:
            raise KeyboardInterrupt
        deleted.append(key)
        delete(key)

    monkeypatch.setattr(area_module, "REMOVING_THREADS", 1)
    monkeypatch.setattr(store, "delete", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        remove_staging(store, "first")
    monkeypatch.undo()
    begin_staging(StoreStaging(store, "second"), now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("preparations/")} == {"second"}


def test_a_preparation_that_somebody_goes_on_with_is_not_abandoned(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    begin_staging(StoreStaging(store, "first"), now=0.0)
    begin_staging(StoreStaging(store, "first"), now=ABANDONED_SECONDS - 1)
    begin_staging(StoreStaging(store, "second"), now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("preparations/")} == {"first", "second"}
