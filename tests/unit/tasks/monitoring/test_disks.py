"""Whoever is on call hears of a file system that is about to be full, once in a segment, and with what to do."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.events.schemas.events import Event

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tasks.monitoring import disks
from tasks.monitoring.disks import DiskWatch
from tasks.prefect_bridge.alerts import LOW_DISK
from tasks.run_paths import RunPaths

Told = Callable[[], list[Event]]


@pytest.fixture(autouse=True)
def any_share_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not real: the share of the disk that must be free. The machine that tests may have less of it."""
    monkeypatch.setattr(disks, "LOWEST_FREE_SHARE", 0.0)


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    store = LocalStore(tmp_path / "store")
    return RunPaths(store, Manifest(store, "run"), tmp_path / "scratch" / "not made yet", tmp_path / "data")


def test_with_room_for_two_checkpoints_nothing_is_said(run_paths: RunPaths, tmp_path: Path, told: Told) -> None:
    DiskWatch(run_paths).look(shutil.disk_usage(tmp_path).free // 4)
    assert told() == []


def test_with_less_room_than_two_checkpoints_take_it_is_said_how_much_is_free_where_and_what_to_do(
    run_paths: RunPaths, tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    DiskWatch(run_paths).look(shutil.disk_usage(tmp_path).free)
    (event,) = told()
    assert event.event == LOW_DISK
    assert event.resource.id == f"holdfast.{run_paths.store.address}/runs/run"
    assert event.payload["run"] == "run" and event.payload["folder"] == str(tmp_path)
    message = event.payload["message"]
    assert message.startswith(f"Little space is left where the store is, {tmp_path}: ")
    assert f"`holdfast prune {run_paths.store.address}/runs/run`" in message
    assert [record.message for record in caplog.records if record.name == "holdfast"] == [message]


def test_with_a_smaller_share_of_free_space_than_it_must_be_it_is_said_before_the_first_checkpoint(
    run_paths: RunPaths, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "LOWEST_FREE_SHARE", 1.1)
    DiskWatch(run_paths).look()
    (event,) = told()
    assert "A checkpoint takes" not in event.payload["message"]


def test_store_and_scratch_on_one_file_system_are_told_of_once_in_a_segment(
    run_paths: RunPaths, tmp_path: Path, told: Told
) -> None:
    too_large = shutil.disk_usage(tmp_path).free
    watch = DiskWatch(run_paths)
    for _ in range(3):
        watch.look(too_large)
    assert len(told()) == 1
    DiskWatch(run_paths).look(too_large)  # the next segment
    assert len(told()) == 2


def test_between_promotions_it_is_looked_now_and_then(
    run_paths: RunPaths, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = DiskWatch(run_paths)
    watch.look()
    monkeypatch.setattr(disks, "LOWEST_FREE_SHARE", 1.1)
    watch.look_now_and_then()  # a moment later
    assert told() == []
    monkeypatch.setattr(watch, "_next_look", 0.0)  # a minute later
    watch.look_now_and_then()
    assert len(told()) == 1


def test_scratch_on_a_file_system_of_its_own_is_told_of_with_other_advice_and_one_of_unknown_size_is_not(
    tmp_path: Path, told: Told
) -> None:
    store = LocalStore(Path("/proc"))
    assert shutil.disk_usage(store.root).total == 0
    DiskWatch(RunPaths(store, Manifest(store, "run"), tmp_path, tmp_path)).look(shutil.disk_usage(tmp_path).free)
    (event,) = told()
    message = event.payload["message"]
    assert message.startswith(f"Little space is left where scratch is, {tmp_path}: ")
    assert "set `scratch` to another folder" in message and "prune" not in message


def test_a_folder_that_cannot_be_looked_at_disturbs_nobody(run_paths: RunPaths, told: Told) -> None:
    store = LocalStore(Path("/dev/null/store"))
    DiskWatch(RunPaths(store, run_paths.manifest, Path("/dev/null/scratch"), Path("/dev/null/data"))).look(1)
    assert told() == []
