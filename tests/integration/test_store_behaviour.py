"""What every store does, whatever it is made of. A new implementation joins by one line in `STORES`.

The store in a bucket is tried on moto, or on the server that HOLDFAST_TEST_S3_ENDPOINT names, and on Ceph, a real one.
"""

import io
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, ObjectExistsError, ObjectMissingError, StoreError
from storage.objects import local_store
from storage.objects.addresses import check_writable, find_run_address, open_store, run_address
from storage.objects.local_store import LocalStore
from storage.objects.s3 import transfers as s3_transfers
from storage.objects.store import Store, put_file_anew
from tests.helpers.s3_server import open_s3_store, use_s3

MIB = 1 << 20
STORES: dict[str, Callable[[Path], Store]] = {
    "folder": lambda path: LocalStore(path / "store"),
    "s3": open_s3_store,
    "ceph": open_s3_store,
}
# The fixtures with the servers that stores in a bucket need, and the markers of these.
ENDPOINTS = {"s3": "s3_endpoint", "ceph": "ceph_endpoint"}
MARKS = {"s3": (pytest.mark.server,), "ceph": (pytest.mark.ceph,)}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param in ENDPOINTS:
        use_s3(monkeypatch, request.getfixturevalue(ENDPOINTS[request.param]))
    return STORES[request.param](tmp_path)


def test_what_was_written_is_read_back(store: Store) -> None:
    store.write("a/b/c.json", b"first")
    store.write("a/b/c.json", b"second")
    assert store.read("a/b/c.json") == b"second"


def test_a_missing_object_is_an_error_of_its_own(store: Store) -> None:
    with pytest.raises(ObjectMissingError, match="nothing/here"):
        store.read("nothing/here")
    with pytest.raises(ObjectMissingError, match="nothing/here"):
        store.fetch("nothing/here")
    with pytest.raises(ObjectMissingError, match="nothing/here"):
        list(store.read_chunks("nothing/here"))
    with pytest.raises(ObjectMissingError, match="nothing/here"):
        store.open("nothing/here")


def test_put_if_absent_never_replaces(store: Store) -> None:
    store.write_if_absent("key", b"first")
    with pytest.raises(ObjectExistsError):
        store.write_if_absent("key", b"second")
    assert store.read("key") == b"first"


def test_another_writer_with_the_same_bytes_is_another_writer(store: Store) -> None:
    store.write_if_absent("key", b"same")
    with pytest.raises(ObjectExistsError):
        store.write_if_absent("key", b"same")


def test_of_many_writers_racing_for_a_key_exactly_one_wins(store: Store) -> None:
    for key in (f"race/{number}" for number in range(20)):
        winners: list[int] = []
        barrier = threading.Barrier(6)

        def put(writer: int, key: str = key, barrier: threading.Barrier = barrier, won: list[int] = winners) -> None:
            barrier.wait()
            try:
                store.write_if_absent(key, str(writer).encode())
            except ObjectExistsError:
                return
            won.append(writer)

        threads = [threading.Thread(target=put, args=(writer,)) for writer in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(writer).encode() for writer in winners] == [store.read(key)]


def test_a_file_is_put_whole_and_once(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(b"x" * 100_000)
    store.put_file(source, "files/one.bin")
    with pytest.raises(ObjectExistsError):
        store.put_file(source, "files/one.bin")
    source.unlink()
    assert store.fetch("files/one.bin").read_bytes() == b"x" * 100_000


def test_a_file_that_is_put_anew_is_at_no_moment_missing(store: Store, tmp_path: Path) -> None:
    source, seen, is_over = tmp_path / "source.bin", [], threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                seen.append(store.read("files/one.bin"))
            except ObjectMissingError:
                seen.append(b"missing")

    source.write_bytes(b"first")
    put_file_anew(store, source, "files/one.bin")
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        source.unlink()
        source.write_bytes(f"other {number}".encode())
        put_file_anew(store, source, "files/one.bin")
    is_over.set()
    reader.join()
    assert store.read("files/one.bin") == store.fetch("files/one.bin").read_bytes() == b"other 19"
    assert seen and b"missing" not in seen
    assert list(store.list_keys("")) == ["files/one.bin"]


@pytest.mark.parametrize("key", ["files/one.bin", "datasets/digest/one.bin"])
def test_what_was_deleted_and_put_again_is_fetched_anew(store: Store, tmp_path: Path, key: str) -> None:
    for content in (b"", b"first", b"other"):
        source = tmp_path / "source.bin"
        source.write_bytes(content)
        store.put_file(source, key)
        source.unlink()
        assert store.fetch(key).read_bytes() == store.fetch(key).read_bytes() == store.read(key) == content
        store.delete(key)
        with pytest.raises(ObjectMissingError):
            store.fetch(key)


@pytest.mark.parametrize("num_bytes", [0, 1, 5 * MIB, 11 * MIB + 7])
def test_an_object_is_read_in_chunks_none_of_which_is_large(
    store: Store, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    for module in (local_store, s3_transfers):
        monkeypatch.setattr(module, "CHUNK_BYTES", 5 * MIB)
    content = random.Random(num_bytes).randbytes(num_bytes)
    store.write("runs/object.bin", content)
    chunks = list(store.read_chunks("runs/object.bin"))
    assert b"".join(chunks) == content
    assert len(chunks) == -(-num_bytes // (5 * MIB))


@pytest.mark.parametrize("key", ["runs/one.bin", "datasets/digest/one.bin"])
def test_what_is_read_in_chunks_is_what_is_durable_and_not_a_copy_of_it(store: Store, tmp_path: Path, key: str) -> None:
    store.write(key, b"what was written")
    copy = store.fetch(key)
    if copy.is_relative_to(tmp_path / "cache"):  # else it is the object itself
        copy.write_bytes(b"what has rotted!")
    assert b"".join(store.read_chunks(key)) == b"what was written"


@pytest.mark.parametrize("key", ["runs/object.bin", "datasets/digest/object.bin"])
@pytest.mark.parametrize("num_bytes", [0, 1, 300_007])
def test_an_object_is_opened_and_read_like_a_file(store: Store, num_bytes: int, key: str) -> None:
    generator = random.Random(num_bytes)
    content = generator.randbytes(num_bytes)
    store.write(key, content)
    with store.open(key) as file:
        assert file.seek(0, io.SEEK_END) == file.tell() == num_bytes
        assert file.read(10) == b""
        for _ in range(20):
            start, size = generator.randrange(num_bytes + 10), generator.choice([1, 100, 70_000])
            assert file.seek(start) == start
            assert file.read(size) == content[start : start + size]
            assert file.tell() == max(start, min(start + size, num_bytes))
        file.seek(0)
        assert file.read() == content


@pytest.mark.parametrize("key", ["runs/object.bin", "datasets/digest/object.bin"])
def test_an_open_object_gives_the_bytes_of_one_version_or_an_error(store: Store, key: str) -> None:
    store.write(key, b"first" * 1000)
    with store.open(key) as file:
        assert file.read(5) == b"first"
        store.write(key, b"other" * 1000)
        try:
            assert file.read(5) == b"first"
        except StoreError as error:
            assert f"{key} was replaced while it was read" in str(error)
        store.delete(key)
        try:
            assert file.read(5) == b"first"
        except ObjectMissingError as error:
            assert f"{key} was deleted while it was read" in str(error)
    with pytest.raises(ObjectMissingError):
        store.open(key)
    store.write(key, b"again")
    with store.open(key) as file:
        assert file.read() == b"again"


def test_keys_are_listed_in_order_and_by_prefix(store: Store) -> None:
    for key in ("b/2", "b/10", "a/1", "b/1", "bb/1"):
        store.write(key, b"")
    assert list(store.list_keys("b/")) == ["b/1", "b/10", "b/2"]
    assert list(store.list_keys("b/1")) == ["b/1", "b/10"]
    assert list(store.list_keys("")) == ["a/1", "b/1", "b/10", "b/2", "bb/1"]
    assert list(store.list_keys("none/")) == []


def test_keys_are_listed_from_any_of_them_on_and_no_more_than_are_needed(store: Store) -> None:
    keys = [f"{folder}/{name}" for folder in ("a", "a-b", "a/c", "a0", "é") for name in ("1", "10", "2", "2.x/3", "é")]
    for key in keys:
        store.write(key, b"")
    for prefix in ("", "a", "a/", "a/2", "a/c/", "é/", "none"):
        own = sorted(key for key in keys if key.startswith(prefix))
        assert list(store.list_keys(prefix)) == own
        for after in (*keys, "a/", "a/c", "a/c/0", "a0", "b", "a/2.x/"):
            later = [key for key in own if key > after]
            assert list(store.list_keys(prefix, after)) == later, (prefix, after)
            for most in (1, 3):
                assert list(store.list_keys(prefix, after, most)) == later[:most], (prefix, after, most)


def test_deleting_twice_is_no_error(store: Store) -> None:
    store.write("gone/soon", b"")
    store.delete("gone/soon")
    store.delete("gone/soon")
    assert list(store.list_keys("gone/")) == []


@pytest.mark.parametrize("key", ["", "/absolute", "a//b", "../outside", "a/../../b"])
def test_a_key_cannot_leave_the_store(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        store.write(key, b"")


def test_a_writable_store_passes_its_trial_and_is_left_as_it_was(store: Store) -> None:
    check_writable(store)
    assert list(store.list_keys("")) == []


def test_the_address_opens_the_same_store(store: Store) -> None:
    store.write("key", b"value")
    assert open_store(store.address).read("key") == b"value"
    found = find_run_address(run_address(store, "my-run"))
    assert found is not None
    assert (found[0].address, found[1]) == (store.address, "my-run")


def test_a_store_under_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"Cannot write .*file/store"):
        check_writable(LocalStore(tmp_path / "file" / "store"))


def test_an_unknown_scheme_is_one_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="gs://"):
        open_store("gs://bucket/prefix")


def test_files_under_way_are_never_listed_and_are_swept_when_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write("key", b"value")
    leftover = tmp_path / ".tmp" / "left-by-a-killed-writer"
    leftover.write_bytes(b"half")
    store.sweep()
    assert leftover.exists()
    monkeypatch.setattr("storage.objects.local_store.SWEEP_AGE_SECONDS", -1)
    store.sweep()
    assert not leftover.exists()
    assert list(store.list_keys("")) == ["key"]
