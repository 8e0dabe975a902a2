"""A folder or a file for a person: whole or not there, whatever fails on the way."""

import os
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.folders import write_file, write_folder


def fill(folder: Path) -> None:
    (folder / "a.txt").write_text("new")


def fail(path: Path) -> None:
    if path.is_dir():
        (path / "a.txt").write_text("half")
    else:
        path.write_text("half")
    raise OSError(28, "No space left on device")


def test_a_folder_appears_whole_also_in_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    out = tmp_path / "models" / "first"
    write_folder(out, fill)
    assert (out / "a.txt").read_text() == "new"
    assert [path.name for path in out.parent.iterdir()] == ["first"]


def test_an_earlier_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")
    write_folder(out, fill)
    assert [path.name for path in out.iterdir()] == ["a.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_where_the_disk_is_full_the_earlier_folder_stays_and_nothing_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")
    with pytest.raises(StoreError, match=r"No space left on device.*still there"):
        write_folder(out, fail)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("out"), Path("out/old.txt")]


def test_a_link_is_replaced_and_what_it_led_to_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "old.txt").write_text("old")
    out = tmp_path / "out"
    out.symlink_to("real")
    write_folder(out, fill)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "out", "out/a.txt", "real", "real/old.txt",
    ]  # fmt: skip


def test_an_earlier_folder_that_cannot_be_removed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rmdir = tmp_path / "out", os.rmdir
    out.mkdir()

    def refuse(path: str, **named: int) -> None:
        if str(path).endswith("-earlier"):
            raise OSError(16, "Device or resource busy")
        rmdir(path, **named)

    monkeypatch.setattr(os, "rmdir", refuse)
    write_folder(out, fill)
    assert [path.name for path in out.iterdir()] == ["a.txt"]


def test_an_earlier_folder_is_put_back_if_its_place_cannot_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = tmp_path / "out", Path.rename
    out.mkdir()
    (out / "old.txt").write_text("old")

    def refuse_the_new_one(path: Path, target: Path) -> Path:
        if Path(target) == out and (path / "a.txt").exists():
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(StoreError, match="Input/output error"):
        write_folder(out, fill)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("out"), Path("out/old.txt")]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    write_file(out, lambda path: path.write_text("first"))
    with pytest.raises(StoreError, match="still there"):
        write_file(out, fail)
    assert out.read_text() == "first"
    with pytest.raises(StoreError, match="its folder is there"):
        write_file(tmp_path / "absent" / "out.txt", lambda path: path.write_text("x"))
    with pytest.raises(StoreError, match="Is a directory"):
        write_file(tmp_path, lambda path: path.write_text("x"))
    with pytest.raises(StoreError, match="Not a directory"):
        write_file(out / "out.txt", lambda path: path.write_text("x"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
