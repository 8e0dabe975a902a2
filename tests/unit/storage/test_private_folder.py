"""A folder for working files below one that all users may write: this user's alone, or refused."""

import os
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.objects.private_folder import make_private_folder
from storage.objects.s3.store import S3Store
from tasks.configuration.run import DataConfig, RunConfig
from tasks.run_paths import RunPaths, open_run_paths, require_scratch


@pytest.fixture
def run_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Those of a run in a bucket, whose working files are below the system's folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in (("REGION", "us-east-1"), ("ENDPOINT_URL_S3", "http://127.0.0.1:9")):
        monkeypatch.setenv(f"AWS_{'DEFAULT_' if name == 'REGION' else ''}{name}", value)
    data = DataConfig(text="t", label="l", kind="binary")
    run_paths = open_run_paths(RunConfig(run="run", store="s3://bucket/prefix", data=data))
    assert isinstance(run_paths.store, S3Store)
    return run_paths


def working_folder(tmp_path: Path) -> Path:
    return tmp_path / f"holdfast-{os.getuid()}"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_one_is_for_this_user_alone(run_paths: RunPaths, tmp_path: Path) -> None:
    require_scratch(run_paths)
    assert mode_of(working_folder(tmp_path)) == 0o700
    assert run_paths.scratch.is_dir() and run_paths.scratch.is_relative_to(working_folder(tmp_path))


def test_one_of_an_earlier_version_that_others_may_read_is_closed_to_them(run_paths: RunPaths, tmp_path: Path) -> None:
    working_folder(tmp_path).mkdir(mode=0o755)
    require_scratch(run_paths)
    assert mode_of(working_folder(tmp_path)) == 0o700


def test_one_that_others_may_write_is_refused(run_paths: RunPaths, tmp_path: Path) -> None:
    working_folder(tmp_path).mkdir()
    working_folder(tmp_path).chmod(0o777)
    with pytest.raises(StoreError, match=r"found mode 0777, which lets others write in it.*set scratch to another"):
        require_scratch(run_paths)
    assert list(working_folder(tmp_path).iterdir()) == []


def test_a_link_is_refused_and_nothing_is_written_where_it_leads(run_paths: RunPaths, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    working_folder(tmp_path).symlink_to(elsewhere)
    with pytest.raises(StoreError, match="found a symbolic link"):
        require_scratch(run_paths)
    assert list(elsewhere.iterdir()) == []


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        make_private_folder(tmp_path / "folder", "scratch")
