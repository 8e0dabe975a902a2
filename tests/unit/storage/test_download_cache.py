"""Copies on local disk: whole, shared, bounded, and never somebody else's."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from storage.errors import StoreError
from storage.objects.download_cache import (
    IN_USE_SECONDS,
    LOCK_PREFIX,
    SECONDS_BETWEEN_LOOKS,
    DownloadCache,
    default_cache_folder,
)


class Download:
    """Writes `content`, and counts how often it was asked to."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.count = 0

    def __call__(self, file: BinaryIO) -> None:
        self.count += 1
        file.write(self.content)


def break_off(file: BinaryIO) -> None:
    file.write(b"half")
    raise StoreError("the network is gone")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(LOCK_PREFIX)}


def age(path: Path, seconds: float) -> None:
    """As if the copy had been used so long ago."""
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_copy_is_downloaded_once(tmp_path: Path) -> None:
    download = Download(b"content")
    for cache in (DownloadCache(tmp_path / "cache"), DownloadCache(tmp_path / "cache")):
        assert cache.get("name", 7, download).read_bytes() == b"content"
    assert download.count == 1


def test_a_copy_is_downloaded_again_where_that_is_asked_for(tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path)
    cache.get("name", 5, Download(b"first"))
    assert cache.get("name", 5, Download(b"again"), anew=True).read_bytes() == b"again"


def test_a_copy_of_another_size_is_none(tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path)
    cache.get("name", 7, Download(b"content")).write_bytes(b"cut")
    assert cache.find("name", 7) is None
    assert cache.get("name", 7, Download(b"content")).read_bytes() == b"content"


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path)
    with pytest.raises(StoreError, match="the network is gone"):
        cache.get("name", 7, break_off)
    assert names_in(tmp_path) == set()


def test_the_copies_used_longest_ago_leave_first(tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path, limit_bytes=30)
    for name, seconds in (("a", 3 * IN_USE_SECONDS), ("b", 5 * IN_USE_SECONDS), ("c", 4 * IN_USE_SECONDS)):
        age(cache.get(name, 10, Download(b"x" * 10)), seconds)
    cache.get("d", 15, Download(b"x" * 15))
    assert names_in(tmp_path) == {"a", "d"}
    assert cache.find("b", 10) is None


def test_a_copy_that_somebody_may_be_about_to_open_stays(tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path, limit_bytes=10)
    age(cache.get("old", 10, Download(b"x" * 10)), 2 * IN_USE_SECONDS)
    assert cache.find("old", 10) is not None  # and is used again
    cache.get("new", 10, Download(b"x" * 10))
    assert names_in(tmp_path) == {"old", "new"}


def test_a_copy_that_is_asked_for_while_room_is_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, found = DownloadCache(tmp_path), []
    for name in ("oldest", "old"):
        age(cache.get(name, 10, Download(b"x" * 10)), 2 * IN_USE_SECONDS)

    def ask_for_it(_path: Path) -> os.statvfs_result:
        found.append(DownloadCache(tmp_path).find("oldest", 10))  # another process, once the copies were listed
        return os.statvfs_result((1, 1, 100, 0, 0, 0, 0, 0, 0, 255))  # nothing is free

    monkeypatch.setattr(os, "statvfs", ask_for_it)
    DownloadCache(tmp_path).get("new", 10, Download(b"x" * 10))
    assert found == [tmp_path / "oldest"]
    assert names_in(tmp_path) == {"oldest", "new"}


def test_copies_are_looked_at_again_after_a_part_of_the_room_or_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, now = [], 0.0
    iterdir = Path.iterdir

    def counted(folder: Path) -> Iterator[Path]:
        looks.append(folder)
        return iterdir(folder)

    cache = DownloadCache(tmp_path, limit_bytes=100_000)
    cache.get("first", 1, Download(b"x"))
    monkeypatch.setattr(Path, "iterdir", counted)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    cache = DownloadCache(tmp_path, limit_bytes=100_000)
    for number in range(1000):
        cache.get(f"copy-{number}", 10, Download(b"x" * 10))
    assert len(looks) == 7  # each one allows 1/64 of what is left, about 150 copies
    now = SECONDS_BETWEEN_LOOKS
    cache.get("later", 10, Download(b"x" * 10))
    assert len(looks) == 8
    cache.get("large", 50_000, Download(b"x" * 50_000))
    assert len(looks) == 9


def test_what_a_killed_download_left_counts_and_leaves_like_a_copy(tmp_path: Path) -> None:
    (tmp_path / "left.part").write_bytes(b"x" * 10)
    age(tmp_path / "left.part", 2 * IN_USE_SECONDS)
    DownloadCache(tmp_path, limit_bytes=15).get("new", 10, Download(b"x" * 10))
    assert names_in(tmp_path) == {"new"}


def test_by_itself_it_takes_at_most_half_of_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = os.statvfs_result((1, 1, 100, 20, 20, 0, 0, 0, 0, 255))  # twenty bytes are free
    monkeypatch.setattr(os, "statvfs", lambda _path: blocks)
    cache = DownloadCache(tmp_path)
    age(cache.get("old", 10, Download(b"x" * 10)), 2 * IN_USE_SECONDS)
    cache.get("small", 5, Download(b"x" * 5))  # half of 20 free and 10 taken
    assert names_in(tmp_path) == {"old", "small"}
    cache.get("more", 5, Download(b"x" * 5))
    assert names_in(tmp_path) == {"small", "more"}


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"Cannot keep downloads in .*file/cache.*set TMPDIR"):
        DownloadCache(tmp_path / "file" / "cache").get("name", 1, Download(b"x"))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StoreError, match=r"belongs to another user .*set scratch, or TMPDIR, to another folder"):
        DownloadCache(tmp_path).get("name", 1, Download(b"x"))


def test_each_user_has_a_folder_of_their_own_that_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = default_cache_folder()
    assert (folder.parent, folder.name) == (tmp_path, f"holdfast-cache-{os.getuid()}")
    DownloadCache(folder).get("name", 1, Download(b"x"))
    assert folder.stat().st_mode & 0o777 == 0o700
