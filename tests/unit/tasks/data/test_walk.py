"""What a source's folder has is in the source, or it is said that it is not."""

import os
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigurationError
from tasks.data.listing import describe_source
from tasks.data.sources.files import find_files, list_files
from tests.helpers.parquet import text_columns, write_parquet

WAYS = ["", "/**/*.parquet"]


def names(source: Path | str) -> list[str]:
    return [file.name for file in find_files(str(source))]


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, refused: Path) -> None:
    """Let a call of the system fail for what is at a path or below, as it does for a user who may not look there."""
    real = getattr(os, call)

    def guarded(path: Any, *given: Any, **more: Any) -> Any:
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(refused):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *given, **more)

    monkeypatch.setattr(os, call, guarded)


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_behind_a_link_is_looked_into_and_a_circle_of_links_ends(tmp_path: Path, way: str) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", text_columns(2))
    write_parquet(tmp_path / "elsewhere" / "b.parquet", text_columns(2))
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "in")
    assert names(f"{tmp_path}/in{way}") == ["a.parquet", "more/b.parquet"]


@pytest.mark.parametrize("way", WAYS)
def test_a_link_to_nothing_is_an_error_that_names_it(tmp_path: Path, way: str) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", text_columns(2))
    (tmp_path / "in" / "b.parquet").symlink_to("../annex/b.parquet")
    with pytest.raises(ConfigurationError, match=r"b\.parquet is a link to \.\./annex/b\.parquet, which is not there"):
        names(f"{tmp_path}/in{way}")
    with pytest.raises(ConfigurationError, match=r"b\.parquet is a link to"):
        names(tmp_path / "in" / "b.parquet")


def test_a_link_to_nothing_that_is_no_part_of_the_source_does_not_matter(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", text_columns(2))
    (tmp_path / ".#a.parquet").symlink_to("someone@host.4711")
    assert names(tmp_path) == ["a.parquet"]
    (tmp_path / "more").symlink_to("nowhere")
    assert names(f"{tmp_path}/*.parquet") == ["a.parquet"]
    with pytest.raises(ConfigurationError, match="more is a link to nowhere"):
        names(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_may_not_be_looked_into_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name in ("a.parquet", "closed/b.parquet"):
        write_parquet(tmp_path / name, text_columns(2))
    refuse(monkeypatch, "scandir", tmp_path / "closed")
    with pytest.raises(ConfigurationError, match=r"data\.source: cannot look at .*closed: Permission denied\."):
        names(f"{tmp_path}{way}")
    assert names(f"{tmp_path}/*.parquet") == ["a.parquet"]  # nothing below can match


@pytest.mark.parametrize("source", ["", "/a.parquet", "/*.parquet"])
def test_a_source_that_cannot_be_seen_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", text_columns(2))
    refuse(monkeypatch, "stat", tmp_path / "in")
    with pytest.raises(ConfigurationError, match=r"data\.source: cannot look at .*in.*: Permission denied\."):
        find_files(f"{tmp_path}/in{source}")


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    for name in ("a.parquet", "B.PARQUET", "deep/c.Parquet"):
        write_parquet(tmp_path / name, text_columns(2))
    for name in ("README.md", "d.pq", "_SUCCESS", "_temporary/e.parquet", "f.json", ".hidden.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    files, left_out = list_files(str(tmp_path))
    assert [file.name for file in files] == ["B.PARQUET", "a.parquet", "deep/c.Parquet"]
    assert left_out == [".hidden.parquet", "README.md", "_SUCCESS", "_temporary/", "d.pq", "f.json"]
    assert describe_source(files, 6000, left_out) == (
        "The source has 3 files with 6,000 rows; left out: .hidden.parquet, README.md, _SUCCESS, _temporary/, d.pq and "
        "1 more."
    )
    assert list_files(f"{tmp_path}/*.parquet").left_out == [
        *(".hidden.parquet", "B.PARQUET", "README.md", "_SUCCESS", "d.pq", "f.json")
    ]
    assert describe_source(files[:1], 10, []) == "The source has 1 file with 10 rows; no file is left out."
