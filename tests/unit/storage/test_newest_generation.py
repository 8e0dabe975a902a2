"""The newest of many generations, and the runs of a store with many objects, are found by few listings."""

import random
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.manifest import find_runs
from storage.runs.newest_generation import find_newest_key
from tests.helpers.counted_requests import counting

PREFIX = "runs/run/manifest/"
PAGE_KEYS = 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "PAGE_KEYS", PAGE_KEYS)
    monkeypatch.setattr(LocalStore, "page_keys", PAGE_KEYS)  # as if it were a bucket


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def key_of(number: int) -> str:
    return f"{PREFIX}{number:012d}.json"


def put(store: LocalStore, keys: list[str]) -> None:
    """Empty objects; nothing of them needs to be on the device."""
    for key in keys:
        path = store.path_of(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def num_listings(store: LocalStore) -> int:
    with counting(store) as counted:
        find_newest_key(store, PREFIX, key_of)
    return counted.requests["list"]


def test_the_newest_is_found_however_many_there_are(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert find_newest_key(store, PREFIX, key_of) is None
    for number in range(1, 40 * PAGE_KEYS):
        put(store, [key_of(number)])
        assert find_newest_key(store, PREFIX, key_of) == key_of(number)  # by who has looked before
        assert find_newest_key(LocalStore(tmp_path), PREFIX, key_of) == key_of(number)


def test_who_has_looked_before_lists_once_and_who_has_not_lists_seldom(store: LocalStore) -> None:
    put(store, [key_of(number) for number in range(1, 500 * PAGE_KEYS)])
    assert num_listings(store) <= 2 + 2 * (500).bit_length()  # ahead by doubling, back by halving, between two pages
    put(store, [key_of(500 * PAGE_KEYS)])
    assert num_listings(store) == 1


def test_in_a_folder_who_has_not_looked_before_lists_once_too(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "page_keys", None)
    put(store, [key_of(number) for number in range(1, 50 * PAGE_KEYS)])
    for _ in range(2):
        assert num_listings(store) == 1 and find_newest_key(store, PREFIX, key_of) == key_of(50 * PAGE_KEYS - 1)


def test_the_newest_is_that_of_a_whole_listing_whatever_was_deleted_or_restored(store: LocalStore) -> None:
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    for _ in range(200):
        for number in generator.sample(range(1, 60 * PAGE_KEYS), 30):
            if generator.random() < generator.choice((0.1, 0.5, 0.9)):
                put(store, [key_of(number)])
            else:
                store.path_of(key_of(number)).unlink(missing_ok=True)
        expected = max(store.list_keys(PREFIX), default=None)
        assert find_newest_key(store, PREFIX, key_of) == expected, f"seed {seed}"
        assert find_newest_key(LocalStore(store.root), PREFIX, key_of) == expected, f"seed {seed}"


def test_files_of_other_names_end_no_search(store: LocalStore) -> None:
    names = [f"{PREFIX}copy of {number}" for number in range(10 * PAGE_KEYS)]
    put(store, [*(key_of(number) for number in range(1, 5)), *names])
    assert find_newest_key(store, PREFIX, key_of) == max(store.list_keys(PREFIX)) == max(names)


@pytest.mark.parametrize("page_keys", [1, 2, PAGE_KEYS, 1000])
def test_a_run_is_where_a_manifest_is_however_much_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_keys: int
) -> None:
    monkeypatch.setattr(manifests, "PAGE_KEYS", page_keys)
    generator = random.Random(page_keys)
    names = [a + b for a, b in product("ab", ("", "-1", "0", ".y", "0b", "é"))]
    others = ("checkpoints/1/a", "checkpoints/1/b", "ledger/1", "manifest/x/y", "report.html", "segments/1/log")
    for number in range(30):
        store = LocalStore(tmp_path / str(number))
        for name in names:
            keys = [*others, "manifest/1.json", "manifest/2.json"]
            chosen = generator.sample(keys, generator.randrange(1, len(keys) + 1))
            put(store, [f"runs/{name}/{key}" for key in chosen] if generator.random() < 0.8 else [f"runs/{name}"])
        expected = {key.split("/")[1] for key in store.list_keys("") if "/manifest/" in key and key.count("/") == 3}
        assert find_runs(store) == sorted(expected)


def test_objects_of_a_long_run_are_passed_over_when_runs_are_looked_for(store: LocalStore) -> None:
    for run in ("long", "other"):
        put(store, [f"runs/{run}/{folder}/{number}" for folder in ("ledger", "segments") for number in range(500)])
        put(store, [f"runs/{run}/manifest/{number:012d}.json" for number in range(500)])
    with patch.object(store, "list_keys", wraps=store.list_keys) as listing:
        assert find_runs(store) == ["long", "other"]
    assert listing.call_count <= 7
