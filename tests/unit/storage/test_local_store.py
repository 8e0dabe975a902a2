"""A store in a folder: what was written is there after the machine died, whoever made the folders that it is in."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ObjectExistsError, StoreError
from storage.objects.local_store import TEMPORARY_FOLDER, LocalStore
from storage.runs.manifest import find_runs
from tests.helpers.unsynced_files import UnsyncedFiles

KEY = "runs/run/manifest/000000000001.json"


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> UnsyncedFiles:
    """What this process makes, names and syncs from now on; `lose` is the power cut."""
    unsynced, fsync, link, replace, mkdir = UnsyncedFiles(), os.fsync, os.link, os.replace, os.mkdir

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.synced(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def linked(source: Any, target: Any, **named: Any) -> None:
        link(source, target, **named)
        unsynced.named(str(target))

    def replaced(source: Any, target: Any, **named: Any) -> None:
        replace(source, target, **named)
        unsynced.named(str(target))

    def made(path: Any, *arguments: Any, **named: Any) -> None:
        mkdir(path, *arguments, **named)
        unsynced.named(str(path))

    for name, wrapper in (("fsync", synced), ("link", linked), ("replace", replaced), ("mkdir", made)):
        monkeypatch.setattr(os, name, wrapper)
    return unsynced


def test_an_object_in_new_folders_is_there_after_the_machine_died(tmp_path: Path, unsynced: UnsyncedFiles) -> None:
    store = LocalStore(tmp_path / "deep" / "store")
    store.write(KEY, b"written")
    unsynced.lose()
    assert store.read(KEY) == b"written"


@pytest.mark.parametrize("made", ["deep", "deep/store", "deep/store/runs", "deep/store/runs/run/manifest"])
@pytest.mark.parametrize("write", ["write", "write_if_absent", "put_file"])
def test_folders_that_a_process_made_which_died_before_it_synced_them_are_there_with_what_is_put_in_them(
    tmp_path: Path, unsynced: UnsyncedFiles, made: str, write: str
) -> None:
    (tmp_path / made).mkdir(parents=True)
    store = LocalStore(tmp_path / "deep" / "store")
    if write == "put_file":
        source = tmp_path / "source"
        source.write_bytes(b"written")
        store.put_file(source, KEY)
    else:
        getattr(store, write)(KEY, b"written")
    unsynced.lose()
    assert store.read(KEY) == b"written"


def test_an_object_that_is_said_to_exist_is_there_after_the_machine_died(
    tmp_path: Path, unsynced: UnsyncedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that died between the link and the sync of its folder: whoever meets the object goes on from it."""
    store = LocalStore(tmp_path / "store")
    with monkeypatch.context() as dying:
        dying.setattr(LocalStore, "_sync_folders_of", lambda _store, _key: None)
        store.write_if_absent(KEY, b"first")
    with pytest.raises(ObjectExistsError):
        LocalStore(tmp_path / "store").write_if_absent(KEY, b"second")
    unsynced.lose()
    assert store.read(KEY) == b"first"


@pytest.mark.parametrize("call", ["put_file", "write", "write_if_absent"])
def test_what_did_not_fit_takes_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store, source = LocalStore(tmp_path / "store"), tmp_path / "file"
    source.write_bytes(b"checkpoint" * 1000)

    def fill_the_disk(_source: Path, target: Path) -> None:
        Path(target).write_bytes(b"checkpoint" * 500)
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_paths: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(shutil, "copyfile", fill_the_disk)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "replace", refuse)
    arguments = {"put_file": (source, "key"), "write": ("key", b"x"), "write_if_absent": ("key", b"x")}
    with pytest.raises(StoreError):
        getattr(store, call)(*arguments[call])
    assert list((store.root / ".tmp").iterdir()) == []


def test_what_is_behind_a_link_is_listed_wherever_the_listing_begins(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.write(KEY, b"written")
    (tmp_path / "store" / "runs" / "run").rename(tmp_path / "moved")
    (tmp_path / "store" / "runs" / "run").symlink_to(tmp_path / "moved")
    (tmp_path / "moved" / "back").symlink_to(tmp_path / "store" / "runs")
    (tmp_path / "moved" / "itself").symlink_to("itself")
    assert list(store.list_keys("runs/run/")) == ["runs/run/itself", KEY] == list(store.list_keys("runs/"))
    assert find_runs(store) == ["run"]
    store.delete(KEY)
    assert KEY not in list(store.list_keys("")) and (tmp_path / "moved").is_dir()


def test_files_under_way_are_never_listed_whatever_is_asked_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a/1", b"")
    (tmp_path / TEMPORARY_FOLDER / "half").touch()
    listed = {prefix: list(store.list_keys(prefix)) for prefix in ("", ".", ".tmp", ".tmp/", ".tmp/half")}
    assert listed == {"": ["a/1"], ".": [], ".tmp": [], ".tmp/": [], ".tmp/half": []}
