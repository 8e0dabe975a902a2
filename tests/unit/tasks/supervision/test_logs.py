"""The log of ranks goes to the store while they work, and whoever reads it there reads all of it once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.logs import LOG_NAME, MOST_KEPT_LOG_BYTES, MOST_LOG_BYTES, read_logs, write_log
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig, RunConfig
from tasks.run_paths import RunPaths
from tasks.supervision import live_log as live
from tasks.supervision import log_reading
from tasks.supervision.launch import find_folder, hold_lease
from tasks.supervision.live_log import LiveLog
from tasks.supervision.log_reading import LogReader, NewText
from tests.helpers.commands import wait_until
from tests.helpers.runs import make_run

RUN = "run"
CONFIG = RunConfig(run=RUN, data=DataConfig(text="t", label="l", kind="binary"))


class Segment:
    """A lease, and the folder in which its ranks print."""

    def __init__(self, folder: Path, store: LocalStore) -> None:
        self.store = store
        self.run_paths = RunPaths(store, make_run(store), folder / "scratch" / RUN, folder / "data")
        lease = hold_lease(CONFIG, self.run_paths, "train").state.lease
        assert lease is not None
        self.lease = lease
        self.file = find_folder(self.run_paths, lease) / LOG_NAME
        self.file.parent.mkdir(parents=True)

    def print(self, text: str) -> None:
        with self.file.open("a") as log:
            log.write(text)

    def stored(self) -> str:
        return "".join(log.text for log in read_logs(self.store, RUN, self.lease.fence))


class StumblingStore(LocalStore):
    """Takes no log while `fails`."""

    fails = False
    num_refused = 0

    def write(self, key: str, data: bytes) -> None:
        if self.fails:
            self.num_refused += 1
            raise StoreError("the store does not answer")
        super().write(key, data)


def threads_of_the_log() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "live-log"]


def test_what_ranks_print_is_in_the_store_while_they_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOG_SECONDS", 0.01)
    segment = Segment(tmp_path, LocalStore(tmp_path / "store"))
    with LiveLog(segment.run_paths, segment.lease):
        for text in ("first\n", "second\n"):
            segment.print(text)
            assert wait_until(lambda: segment.stored() == segment.file.read_text())
    assert segment.stored() == "first\nsecond\n" and threads_of_the_log() == []


def test_the_last_words_are_in_the_store_when_the_block_is_left(tmp_path: Path) -> None:
    segment = Segment(tmp_path, LocalStore(tmp_path / "store"))
    with pytest.raises(KeyboardInterrupt), LiveLog(segment.run_paths, segment.lease):
        segment.print("last words\n")
        raise KeyboardInterrupt
    assert segment.stored() == "last words\n" and threads_of_the_log() == []


def test_of_a_long_log_no_more_than_its_newest_part_is_put(tmp_path: Path) -> None:
    segment = Segment(tmp_path, LocalStore(tmp_path / "store"))
    with LiveLog(segment.run_paths, segment.lease):
        segment.print(f"{'x' * 99}\n" * (MOST_LOG_BYTES // 50))
    assert len(segment.store.read(f"runs/{RUN}/segments/{segment.lease.fence:08d}/ranks.log")) <= MOST_LOG_BYTES


def test_a_log_that_did_not_grow_is_not_put_again_and_ranks_that_print_elsewhere_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "LOG_SECONDS", 0.01)
    segment = Segment(tmp_path, LocalStore(tmp_path / "store"))
    looks = count_looks(monkeypatch)
    with LiveLog(segment.run_paths, segment.lease):
        assert wait_until(lambda: looks() >= 3)
        assert segment.stored() == ""
        segment.print("said\n")
        assert wait_until(lambda: segment.stored() == "said\n")
        key = f"runs/{RUN}/segments/{segment.lease.fence:08d}/ranks.log"
        segment.store.delete(key)  # so that another put would be seen
        before = looks()
        assert wait_until(lambda: looks() >= before + 3)
    assert segment.stored() == "" and caplog.text == ""


def test_a_store_that_fails_for_a_while_costs_the_log_its_punctuality_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "LOG_SECONDS", 0.01)
    store = StumblingStore(tmp_path / "store")
    segment = Segment(tmp_path, store)
    store.fails = True
    segment.print("said\n")
    with LiveLog(segment.run_paths, segment.lease):
        assert wait_until(lambda: store.num_refused >= 2)
        store.fails = False
        assert wait_until(lambda: segment.stored() == "said\n")
    assert "could not be put into the store, and is put again: the store does not answer" in caplog.text


def count_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the log was looked at since."""
    looks: list[None] = []
    look = LiveLog._pass_on

    def counting(log: LiveLog) -> None:
        look(log)
        looks.append(None)

    monkeypatch.setattr(LiveLog, "_pass_on", counting)
    return lambda: len(looks)


class Log:
    """A log that grows, on its way to a reader."""

    def __init__(self, folder: Path, node: str | None = None) -> None:
        self.store, self.node = LocalStore(folder / "store"), node
        self.file = folder / f"{node}.log"

    def print(self, text: str, most_bytes: int = MOST_LOG_BYTES) -> None:
        with self.file.open("a") as log:
            log.write(text)
        write_log(self.store, RUN, 7, self.file, self.node, most_bytes)


def test_a_reader_is_given_each_line_once_when_it_is_whole(tmp_path: Path) -> None:
    log = Log(tmp_path)
    reader = LogReader(log.store, RUN, 7)
    assert list(reader.read(is_last=False)) == []
    log.print("one\ntw")
    assert list(reader.read(is_last=False)) == [NewText(None, "one\n")]
    assert list(reader.read(is_last=False)) == []
    log.print("o\nthree")
    assert list(reader.read(is_last=False)) == [NewText(None, "two\n")]
    assert list(reader.read(is_last=True)) == [NewText(None, "three")]


def test_a_reader_that_came_too_late_for_some_lines_is_told_how_much_it_missed(tmp_path: Path) -> None:
    log = Log(tmp_path)
    lines = [f"line {number}\n" for number in range(100)]
    whole = "".join(lines)
    reader = LogReader(log.store, RUN, 7)
    log.print("".join(lines[:10]), most_bytes=200)
    (first,) = reader.read(is_last=False)
    log.print("".join(lines[10:]), most_bytes=200)
    (second,) = reader.read(is_last=False)
    told, _, rest = second.text.partition("\n")
    missed = len(whole) - len(first.text) - len(rest)
    assert told == f"({missed} bytes of this log are not in the store.)"
    assert whole.startswith(first.text) and whole.endswith(rest) and missed > 0
    log.print("last\n", most_bytes=MOST_KEPT_LOG_BYTES)  # as the settled segment writes it
    assert list(reader.read(is_last=True)) == [NewText(None, "last\n")]


def test_of_one_rank_only_its_own_lines_are_given(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.print("a library says\n[rank1]: one\r\u2028still one\n[rank10]: ten\n[rank0]: [rank1]: zero\n[rank1]: two\n")
    (new,) = LogReader(log.store, RUN, 7, rank=1).read(is_last=True)
    assert new.text == "[rank1]: one\r\u2028still one\n[rank1]: two\n"
    assert list(LogReader(log.store, RUN, 7, rank=2).read(is_last=True)) == []


def test_the_logs_of_nodes_are_read_one_by_one(tmp_path: Path) -> None:
    logs = [Log(tmp_path, node) for node in ("n1", "n2")]
    reader = LogReader(logs[0].store, RUN, 7)
    logs[1].print("on two\n")
    assert list(reader.read(is_last=False)) == [NewText("n2", "on two\n")]
    logs[0].print("on one\n")
    logs[1].print("more\n")
    assert list(reader.read(is_last=False)) == [NewText("n1", "on one\n"), NewText("n2", "more\n")]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_long_log_is_given_in_pieces_of_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    monkeypatch.setattr(log_reading, "PIECE_BYTES", 100)
    segment = Segment(tmp_path, LocalStore(tmp_path / "store"))
    lines = [f"[rank 0] {'é' * (number % 90)}\n" for number in range(200)]
    segment.print("".join(lines) + "half")
    write_log(segment.store, RUN, segment.lease.fence, segment.file)
    pieces = [new.text for new in LogReader(segment.store, RUN, segment.lease.fence).read(is_last)]
    assert "".join(pieces) == "".join(lines) + ("half" if is_last else "")
    assert len(pieces) > 50 and all(piece.endswith("\n") for piece in pieces[:-1])
    assert max(len(piece.encode()) for piece in pieces) < 100 + len(max(lines, key=len).encode())
