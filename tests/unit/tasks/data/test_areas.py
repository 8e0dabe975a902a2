"""What units of a preparation leave: sealed, whole or not there, and removed when nobody will finish it."""

from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tasks.data.units import staging as area_module
from tasks.data.units.staging import ABANDONED_SECONDS, Area, FolderArea, StoreArea, begin_area, remove_area


@pytest.fixture(params=["store", "folder"])
def area(request: pytest.FixtureRequest, tmp_path: Path) -> Area:
    if request.param == "folder":
        return FolderArea(tmp_path / "area")
    return StoreArea(LocalStore(tmp_path / "store"), "key")


def test_a_record_and_its_files_are_found_again(area: Area, tmp_path: Path) -> None:
    path = tmp_path / "under way"
    path.write_bytes(b"0123456789")
    assert area.find("unit") is None
    area.keep("unit", {"rows": [1, 2]}, {"unit.parts": path})
    assert area.find("unit") == {"rows": [1, 2]}
    assert area.fetch("unit.parts").read_bytes() == b"0123456789"
    assert area.read_range("unit.parts", 3, 6) == b"345"
    assert area.address_of("unit.parts").endswith("unit.parts")
    assert not path.exists()


@pytest.mark.parametrize("place", [0, 10, -2])
def test_a_record_with_another_byte_counts_as_none(tmp_path: Path, place: int) -> None:
    store = LocalStore(tmp_path / "store")
    area = StoreArea(store, "key")
    area.keep("unit", {"rows": [1, 2]}, {})
    (key,) = store.list_keys("preparations/")
    content = bytearray(store.read(key))
    content[place] ^= 1
    store.write(key, bytes(content))
    assert area.find("unit") is None


def test_files_that_a_killed_unit_left_are_replaced(tmp_path: Path) -> None:
    area, path = StoreArea(LocalStore(tmp_path / "store"), "key"), tmp_path / "under way"
    area.store.write("preparations/key/unit.parts", b"half of")
    path.write_bytes(b"all of it")
    area.keep("unit", {}, {"unit.parts": path})
    assert area.fetch("unit.parts").read_bytes() == b"all of it"


def test_what_was_begun_two_weeks_ago_and_never_finished_is_removed(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "under way"
    path.write_bytes(b"x")
    first, second, third = (StoreArea(store, key) for key in ("first", "second", "third"))
    begin_area(first, now=0.0)
    first.keep("unit", {}, {"unit.parts": path})
    begin_area(second, now=ABANDONED_SECONDS - 1)
    assert first.find("unit") == {}
    begin_area(third, now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("")} == {"second", "third"}


def test_what_is_left_where_a_removal_was_killed_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    area = StoreArea(store, "first")
    begin_area(area, now=0.0)
    for number in range(5):
        area.keep(f"unit-{number}", {}, {})
    delete, deleted = store.delete, list[str]()

    def die_at_the_third(key: str) -> None:
        if len(deleted) == 2:
            raise KeyboardInterrupt
        deleted.append(key)
        delete(key)

    monkeypatch.setattr(area_module, "REMOVING_THREADS", 1)
    monkeypatch.setattr(store, "delete", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        remove_area(store, "first")
    monkeypatch.undo()
    begin_area(StoreArea(store, "second"), now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("preparations/")} == {"second"}


def test_a_preparation_that_somebody_goes_on_with_is_not_abandoned(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    begin_area(StoreArea(store, "first"), now=0.0)
    begin_area(StoreArea(store, "first"), now=ABANDONED_SECONDS - 1)
    begin_area(StoreArea(store, "second"), now=ABANDONED_SECONDS + 1)
    assert {key.split("/")[1] for key in store.list_keys("preparations/")} == {"first", "second"}
