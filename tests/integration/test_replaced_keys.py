"""Keys of a bucket that are replaced, in the file where boto3 finds them, while a process uses the store."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import StoreRefusedError
from storage.objects.s3.store import S3Store
from storage.objects.s3.transfers import CHUNK_BYTES, MULTIPART_BYTES
from tests.helpers.ceph_server import put_key, remove_key
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.s3_server import CREDENTIALS, open_s3_store, running_hurried_proxy, use_s3

OLD, NEW = "oldaccess", CREDENTIALS["AWS_ACCESS_KEY_ID"]


@dataclass(frozen=True)
class Keys:
    """The file with the keys, and the proxy before the server, which refuses the old one when it is told to."""

    file: Path
    proxy: FaultyProxy

    def set(self, key: str) -> None:
        write_key(self.file, key)


def write_key(file: Path, key: str) -> None:
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")


@pytest.fixture
def keys(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keys]:
    with running_hurried_proxy(s3_endpoint, tmp_path, monkeypatch) as proxy:
        keys = Keys(tmp_path / "credentials", proxy)
        have_keys_from(keys.file, monkeypatch)
        keys.set(OLD)
        yield keys


def have_keys_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))


def open_and_read(store: S3Store) -> None:
    with store.open("there.bin") as file:
        assert file.read() == b"there"


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.read("there.bin"),
        lambda store: store.fetch("there.bin"),
        lambda store: list(store.read_chunks("there.bin")),
        open_and_read,
        lambda store: list(store.list_keys("")),
        lambda store: store.write("again.bin", b"1"),
        lambda store: store.write_if_absent("new.bin", b"1"),
        lambda store: store.delete("there.bin"),
        lambda store: store.sweep(),
    ],
    ids=["read", "fetch", "chunks", "open", "list", "write", "if-absent", "delete", "sweep"],
)
def test_a_refused_key_is_an_error_until_the_file_has_another_one(
    use: Callable[[S3Store], object], keys: Keys, tmp_path: Path
) -> None:
    store = open_s3_store(tmp_path)
    store.write("there.bin", b"there")
    keys.proxy.refused_keys.add(OLD)
    with pytest.raises(StoreRefusedError, match="403"):
        use(store)
    keys.set(NEW)
    use(store)


def test_a_key_that_is_refused_and_the_same_in_the_file_is_not_tried_again(keys: Keys, tmp_path: Path) -> None:
    keys.proxy.refused_keys.add(OLD)
    store = open_s3_store(tmp_path)
    with pytest.raises(StoreRefusedError):
        store.read("there.bin")
    assert len(keys.proxy.requests) == 1


@pytest.mark.parametrize("text", ["[default]\naws_access_key_id = newac", "[default", ""])
def test_a_file_that_is_just_being_written_is_waited_for_as_a_key_that_is_refused(
    text: str, keys: Keys, tmp_path: Path
) -> None:
    keys.proxy.refused_keys.add(OLD)
    store = open_s3_store(tmp_path)
    keys.file.write_text(text)
    with pytest.raises(StoreRefusedError, match="does not accept the credentials"):
        store.write_if_absent("new.bin", b"1")
    keys.set(NEW)
    store.write_if_absent("new.bin", b"1")
    assert store.read("new.bin") == b"1"


def test_a_key_that_is_replaced_in_the_middle_of_an_upload_in_parts_costs_none_of_them(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_s3_store(tmp_path)
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(range(256)) * ((MULTIPART_BYTES + CHUNK_BYTES) // 256))

    def replace() -> None:
        keys.set(NEW)
        keys.proxy.refused_keys.add(OLD)

    keys.proxy.strike = replace
    strike = keys.proxy.fail(Failure.STRUCK_AFTER, "PUT", "partNumber=2")
    with caplog.at_level(logging.WARNING, "holdfast"):
        store.put_file(file, "large.bin")
    assert strike.fired == 1
    assert store.fetch("large.bin").read_bytes() == file.read_bytes()
    assert keys.proxy.count("POST", "uploads") == 1
    assert [line for line in caplog.messages if "refuses the key" in line] == [
        f"{store.address} refuses the key in use. boto3 finds another one now, which is used."
    ]


def test_a_key_that_a_real_server_no_longer_knows_is_replaced_by_the_one_in_the_file(
    ceph_endpoint: str, ceph_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, ceph_endpoint)
    have_keys_from(tmp_path / "credentials", monkeypatch)
    for key in ("rotated1", "rotated2"):
        put_key(ceph_folder, key, CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    write_key(tmp_path / "credentials", "rotated1")
    store = open_s3_store(tmp_path)
    store.write("there.bin", b"there")
    remove_key(ceph_folder, "rotated1")
    with pytest.raises(StoreRefusedError, match="403"):
        store.read("there.bin")
    write_key(tmp_path / "credentials", "rotated2")
    assert store.read("there.bin") == b"there"
    store.write_if_absent("new.bin", b"1")
    remove_key(ceph_folder, "rotated2")
