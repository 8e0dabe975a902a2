"""What a user types, and what it is taken for: a store in a folder or a bucket, a run, or one clear error."""

import re
from pathlib import Path

import pytest

from flows.resume import load_run_configuration
from storage.errors import ConfigurationError, RunMissingError
from storage.objects.addresses import (
    MAX_RUN_NAME_CHARACTERS,
    find_run_address,
    find_store_address,
    open_store,
    require_run_name,
)
from storage.objects.local_store import LocalStore
from storage.runs.addresses import find_target
from storage.runs.manifest import Manifest
from tests.helpers.runs import make_run


@pytest.mark.parametrize(
    "address",
    ["s3:/bucket", "s3:bucket/prefix", "S3://bucket/prefix", "gs://bucket", "file:///data/store", "abfs:x", "s3:"],
)
def test_what_begins_like_a_url_and_is_no_address_of_a_bucket_is_one_clear_error(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"store = '{address}': expected s3://bucket/prefix, or the path of a folder"
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        open_store(address)
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        find_store_address(address)


@pytest.mark.parametrize("address", ["store", "../store", "/data/store/", "s3://bucket", "s3://bucket/a/prefix/"])
def test_the_address_of_a_store_is_found_without_opening_it(address: str) -> None:
    assert find_store_address(address) == open_store(address).address


def test_a_password_in_an_address_is_not_printed() -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_store("ftp://user:secret@host/store")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("address", ["store", "./s3:/bucket", "/data/a:b", "2026-11-22T10:00", "C:store"])
def test_a_path_with_a_colon_that_begins_no_url_is_a_folder(address: str) -> None:
    assert isinstance(open_store(address), LocalStore)


@pytest.mark.parametrize(
    ("text", "store", "run"),
    [
        ("/data/store/runs/demo", "/data/store", "demo"),
        ("/data/store/runs/demo/", "/data/store", "demo"),
        ("/data/runs/store/runs/demo", "/data/runs/store", "demo"),
        ("/runs/demo", "/", "demo"),
    ],
)
def test_the_address_of_a_run_is_its_store_and_its_name(text: str, store: str, run: str) -> None:
    found = find_run_address(text)
    assert found is not None
    assert (found[0].address, found[1]) == (store, run)


@pytest.mark.parametrize(
    "text", ["/data/store", "/data/runs/../x", "/data/runs/..", "/data/runs/a/b", "s3://runs/demo"]
)
def test_another_address_is_none_of_a_run(text: str) -> None:
    assert find_run_address(text) is None


def test_a_run_is_where_a_manifest_is(tmp_path: Path) -> None:
    """A store may be in a folder called `runs`: its address has the form of a run's."""
    store = LocalStore(tmp_path / "runs" / "store")
    make_run(store, "demo")
    for text in (store.address, f"{store.address}/"):
        found, run = find_target(text)
        assert (found.address, run) == (store.address, None)
    found, run = find_target(f"{store.address}/runs/demo")
    assert (found.address, run) == (store.address, "demo")
    outer = make_run(LocalStore(tmp_path), "store")  # from now on there is a run of that name, too
    found, run = find_target(store.address)
    assert (found.address, run) == (outer.store.address, "store")


def test_an_address_that_is_neither_a_run_nor_a_store_with_runs_says_both(tmp_path: Path) -> None:
    words = rf"There is no run 'demo' in {tmp_path}, and no store with runs at {tmp_path}/runs/demo\."
    with pytest.raises(RunMissingError, match=words):
        find_target(f"{tmp_path}/runs/demo")


@pytest.mark.parametrize("run", ["../../x", "a/b", "", ".hidden", "a\n", "x" * (MAX_RUN_NAME_CHARACTERS + 1), "a b"])
def test_what_cannot_be_the_name_of_a_run_is_one_clear_error_where_it_is_given(tmp_path: Path, run: str) -> None:
    for refuse in (lambda: require_run_name(run), lambda: load_run_configuration(str(tmp_path), run, {})):
        with pytest.raises(ConfigurationError, match=r"is not the name of a run: expected 1 to 100 letters"):
            refuse()


def test_the_names_that_are_in_use_stay_allowed(tmp_path: Path) -> None:
    for run in ("demo", "a.b", "A-b_1", "x" * MAX_RUN_NAME_CHARACTERS):
        require_run_name(run)
        assert not Manifest(LocalStore(tmp_path), run).exists()
