"""What the store keeps of a log: all of a short one, the end of a long one, and where that begins."""

from pathlib import Path

import pytest

from storage.logs import MOST_KEPT_LOG_BYTES, MOST_LOG_BYTES, StoredLog, read_logs, write_log
from storage.objects.local_store import LocalStore

RUN, FENCE = "run", 7
KEY = f"runs/{RUN}/segments/{FENCE:08d}/ranks.log"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_a_short_log_is_kept_as_it_is_and_one_that_grew_takes_its_place(store: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "ranks.log"
    for text in ("first\n", "first\nsecond\n"):
        file.write_text(text)
        assert write_log(store, RUN, FENCE, file) == len(text)
        assert store.read(KEY).decode() == text
        assert read_logs(store, RUN, FENCE) == [StoredLog(None, 0, text.encode())]


@pytest.mark.parametrize("too_many", [1, 1000, 10 * MOST_LOG_BYTES])
def test_of_a_long_log_the_end_is_kept_and_it_is_known_where_it_begins(
    store: LocalStore, tmp_path: Path, too_many: int
) -> None:
    file = tmp_path / "ranks.log"
    written = b"".join(b"line %d\n" % number for number in range((MOST_LOG_BYTES + too_many) // 10))
    written = written[-(MOST_LOG_BYTES + too_many) :].rjust(MOST_LOG_BYTES + too_many, b".")
    file.write_bytes(written)
    write_log(store, RUN, FENCE, file)
    (log,) = read_logs(store, RUN, FENCE)
    assert log.begins_at > 0 and log.data == written[log.begins_at :]
    kept = store.read(KEY)
    assert MOST_LOG_BYTES - 10 < len(kept) <= MOST_LOG_BYTES
    assert kept.startswith(b"The first %d bytes of this log are left out.\n" % log.begins_at)


def test_a_long_log_is_kept_whole_where_another_limit_is_asked_for(store: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "ranks.log"
    file.write_bytes(b"x" * (MOST_LOG_BYTES + 5))
    write_log(store, RUN, FENCE, file, most_bytes=MOST_KEPT_LOG_BYTES)
    assert store.read(KEY) == file.read_bytes()


def test_logs_of_a_cluster_s_nodes_are_found_by_node_and_those_of_other_segments_are_not(
    store: LocalStore, tmp_path: Path
) -> None:
    file = tmp_path / "ranks.log"
    for node, fence in (("n2", FENCE), ("n1", FENCE), ("n1", FENCE + 1)):
        file.write_text(f"{node} of {fence}")
        write_log(store, RUN, fence, file, node)
    assert read_logs(store, RUN, FENCE) == [StoredLog("n1", 0, b"n1 of 7"), StoredLog("n2", 0, b"n2 of 7")]
    assert read_logs(store, RUN, FENCE - 1) == []
