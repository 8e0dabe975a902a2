"""A store in a bucket when the network or the server does not do its part.

The faults are made by a proxy before the server, so what boto3 meets is real; and each test shows that its fault took
place. Servers differ in what they answer: all is tried on moto and on Ceph.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from storage.errors import (
    ConfigurationError,
    ConflictError,
    ObjectExistsError,
    ObjectMissingError,
    StoreError,
    StoreUnavailableError,
)
from storage.objects.addresses import check_writable, open_store
from storage.objects.s3 import store as s3_store
from storage.objects.s3 import transfers as s3_transfers
from storage.objects.s3.store import S3Store
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.runs import make_run
from tests.helpers.s3_server import BUCKET, CREDENTIALS, PATIENT_SECONDS, open_s3_store, running_hurried_proxy

MIB = 1 << 20
# The server has done what it was asked for, and we cannot know.
UNCLEAR = [Failure.REPLY_LOST, Failure.REPLY_IS_ERROR, Failure.HANG]
# Until a client gives up an answer that never comes. The server must have done by then what it was asked for.
IMPATIENT_SECONDS = 5
# The server has not heard of it, or says no without another's object being there.
UNDONE = [Failure.SLOW_DOWN, Failure.RESET, Failure.CONFLICT]


@pytest.fixture(
    scope="module", params=[pytest.param("s3", marks=pytest.mark.server), pytest.param("ceph", marks=pytest.mark.ceph)]
)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_endpoint"))


@pytest.fixture
def proxy(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[FaultyProxy]:
    """A proxy that boto3 takes for the server, for a client that waits as long as a test's parameter says."""
    with running_hurried_proxy(server, tmp_path, monkeypatch, getattr(request, "param", PATIENT_SECONDS)) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultyProxy, tmp_path: Path) -> S3Store:
    return open_s3_store(tmp_path)


@pytest.fixture
def large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that goes up in three parts."""
    monkeypatch.setattr(s3_transfers, "MULTIPART_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_transfers, "CHUNK_BYTES", 5 * MIB)
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(range(256)) * (10 * MIB // 256) + b"the end")
    return path


@pytest.mark.parametrize(
    ("failure", "proxy"),
    [(failure, IMPATIENT_SECONDS if failure is Failure.HANG else PATIENT_SECONDS) for failure in [*UNCLEAR, *UNDONE]],
    indirect=["proxy"],
)
def test_a_conditional_put_with_an_unclear_answer_is_ours(
    store: S3Store, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture, failure: Failure
) -> None:
    fault = proxy.fail(failure, "PUT", "/key")
    store.write_if_absent("key", b"value")
    assert fault.fired == 1
    assert store.read("key") == b"value"
    # Where the reply was lost, looking was enough; where nothing had been done, it was done again.
    assert proxy.count("PUT", "/key") == (1 if failure in UNCLEAR else 2)
    assert ("attempt 1 of 6 failed" in caplog.text) == (failure in UNDONE)


@pytest.mark.parametrize("failure", [Failure.RESET, Failure.CONFLICT, Failure.SLOW_DOWN])
def test_a_conditional_put_with_an_unclear_answer_is_not_ours_if_another_was_quicker(
    store: S3Store, proxy: FaultyProxy, failure: Failure
) -> None:
    store.write_if_absent("key", b"value")
    fault = proxy.fail(failure, "PUT", "/key")
    with pytest.raises(ObjectExistsError):
        store.write_if_absent("key", b"value")  # the very same bytes
    assert fault.fired == 1


def test_a_commit_whose_reply_was_lost_is_one_generation(store: S3Store, proxy: FaultyProxy) -> None:
    manifest = make_run(store)
    fault = proxy.fail(Failure.REPLY_LOST, "PUT", "000000000002.json")
    assert manifest.commit("noted", lambda state, _number: state).generation == 2
    assert fault.fired == 1
    assert manifest.load_head().generation == 2


def test_a_run_whose_creation_was_repeated_is_not_taken_for_another_ones(store: S3Store, proxy: FaultyProxy) -> None:
    fault = proxy.fail(Failure.REPLY_IS_ERROR, "PUT", "000000000001.json")
    manifest = make_run(store)
    assert fault.fired == 1
    assert manifest.load_head().generation == 1
    with pytest.raises(ConflictError):
        make_run(store)


CALLS: dict[str, tuple[str, Callable[[S3Store, str], object]]] = {
    "read": ("GET", lambda store, key: store.read(key)),
    "write": ("PUT", lambda store, key: store.write(key, b"value")),
    "fetch": ("HEAD", lambda store, key: store.fetch(key)),
    "fetch's download": ("GET", lambda store, key: store.fetch(key)),
    "list": ("GET", lambda store, _key: list(store.list_keys(""))),
    "delete": ("DELETE", lambda store, key: store.delete(key)),
}


@pytest.mark.parametrize("failure", [Failure.CUT, Failure.SLOW_DOWN, Failure.RESET])
def test_a_request_that_fails_is_made_again(store: S3Store, proxy: FaultyProxy, failure: Failure) -> None:
    for number, (call, (method, action)) in enumerate(CALLS.items()):
        if failure is Failure.CUT and method != "GET":
            continue  # an answer without a body cannot be cut off
        store.write(f"key{number}", b"value")
        fault = proxy.fail(failure, method, times=2)
        action(store, f"key{number}")
        assert fault.fired == 2, call


def test_a_server_that_stays_away_is_given_up_after_the_attempts_that_are_configured(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    store = open_s3_store(tmp_path)
    fault = proxy.fail(Failure.SLOW_DOWN, "GET", times=100)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match=r"Cannot use .*503 SlowDown \(at key\)"):
        store.read("key")
    assert fault.fired == 3
    assert [f"attempt {i} of 3 failed (503 SlowDown)" in caplog.text for i in (1, 2, 3)] == [True, True, False]


def test_a_file_in_parts_arrives_whole_and_once(store: S3Store, proxy: FaultyProxy, large_file: Path) -> None:
    store.put_file(large_file, "runs/r/large.bin")
    assert proxy.count("PUT", "partNumber=") == 3
    assert store.read("runs/r/large.bin") == large_file.read_bytes()
    assert store.fetch("runs/r/large.bin").read_bytes() == large_file.read_bytes()
    with pytest.raises(ObjectExistsError):
        store.put_file(large_file, "runs/r/large.bin")
    assert proxy.count("PUT", "partNumber=") == 3  # nothing was sent in vain


def test_a_file_in_parts_replaces_another_one(store: S3Store, proxy: FaultyProxy, large_file: Path) -> None:
    store.write("runs/r/large.bin", b"half of it")
    store.replace_file(large_file, "runs/r/large.bin")
    assert proxy.count("PUT", "partNumber=") == 3 and proxy.count("DELETE", "large.bin") == 0
    assert store.fetch("runs/r/large.bin").read_bytes() == large_file.read_bytes()


@pytest.mark.parametrize("failure", [Failure.REPLY_LOST, Failure.REPLY_IS_ERROR, Failure.RESET, Failure.CONFLICT])
def test_a_file_in_parts_whose_completion_is_unclear_is_ours(
    store: S3Store, proxy: FaultyProxy, large_file: Path, failure: Failure
) -> None:
    fault = proxy.fail(failure, "POST", "uploadId=")
    store.put_file(large_file, "runs/r/large.bin")
    assert fault.fired == 1
    assert store.fetch("runs/r/large.bin").read_bytes() == large_file.read_bytes()


def test_a_part_that_gets_lost_is_sent_again(store: S3Store, proxy: FaultyProxy, large_file: Path) -> None:
    faults = [proxy.fail(failure, "PUT", "partNumber=2") for failure in (Failure.RESET, Failure.REPLY_LOST)]
    store.put_file(large_file, "runs/r/large.bin")
    assert [fault.fired for fault in faults] == [1, 1]
    assert store.fetch("runs/r/large.bin").read_bytes() == large_file.read_bytes()


@pytest.mark.parametrize(("method", "part"), [("PUT", "partNumber=2"), ("POST", "uploadId=")])
def test_an_upload_that_fails_is_aborted(
    store: S3Store, proxy: FaultyProxy, large_file: Path, method: str, part: str
) -> None:
    fault = proxy.fail(Failure.SLOW_DOWN, method, part, times=100)
    with pytest.raises(StoreError, match="503 SlowDown"):
        store.put_file(large_file, "runs/r/large.bin")
    assert fault.fired == 6
    assert proxy.count("DELETE", "uploadId=") == 1
    assert uploads_under_way(store) == []
    with pytest.raises(ObjectMissingError):
        store.read("runs/r/large.bin")


def test_uploads_that_were_killed_are_swept_when_old(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("runs/r/one", "datasets/d/two", "elsewhere/three"):
        store._s3.client.create_multipart_upload(**store._s3.target(key))
    # moto says of every upload that it began in 2010, another server that it began just now.
    monkeypatch.setattr(s3_store, "SWEEP_AGE", timedelta(days=36500))
    store.sweep()
    assert uploads_under_way(store) == ["datasets/d/two", "elsewhere/three", "runs/r/one"]
    monkeypatch.setattr(s3_store, "SWEEP_AGE", timedelta(days=-1))
    store.sweep()
    assert uploads_under_way(store) == ["elsewhere/three"]


def test_a_listing_of_many_pages_is_whole(store: S3Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"many/{number:02d}" for number in range(7)]
    for key in keys:
        store.write(key, b"")
    monkeypatch.setattr(store._s3.client, "list_objects_v2", limited(store._s3.client.list_objects_v2))
    assert list(store.list_keys("many/")) == keys
    assert proxy.count("GET", "list-type=2") == 4


def test_a_server_without_put_if_absent_is_refused_and_left_as_it_was(store: S3Store) -> None:
    dropped: list[str] = []
    # Before the request is signed: what the server gets is valid, and has no condition.
    store._s3.client.meta.events.register(
        "before-call.s3.PutObject", lambda params, **_: dropped.append(params["headers"].pop("If-None-Match"))
    )
    with pytest.raises(StoreError, match=r"does not honour put-if-absent.*If-None-Match"):
        check_writable(store)
    assert dropped == ["*", "*"]
    assert list(store.list_keys("")) == []


def test_checksums_are_sent_as_configured(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_file: Path
) -> None:
    open_s3_store(tmp_path).write("key", b"value")
    assert any(name.lower().startswith("x-amz-checksum-") for name in proxy.headers[-1])
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    older = open_s3_store(tmp_path)
    older.write("key", b"value")
    assert proxy.headers[-1]["Content-MD5"] == "IGPBYI1uC6+AJJxC4r5YBA=="
    older.put_file(large_file, "large")
    asked = [headers for (method, _), headers in zip(proxy.requests, proxy.headers, strict=True) if method == "PUT"]
    assert not any(name.lower().startswith("x-amz-checksum-") for headers in asked[1:] for name in headers)
    assert all("Content-MD5" in headers for headers in asked[1:])
    assert older.fetch("large").read_bytes() == large_file.read_bytes()


def test_a_shard_is_downloaded_once_for_all_who_fetch_it(store: S3Store, proxy: FaultyProxy) -> None:
    store.write("datasets/d/shard", b"rows" * 1000)
    others = [open_store(store.address, cache=store._cache.folder) for _ in range(4)]
    threads = [threading.Thread(target=other.fetch, args=("datasets/d/shard",)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert proxy.count("GET", "/shard") == 1
    asked = len(proxy.requests)
    assert others[0].fetch("datasets/d/shard").read_bytes() == b"rows" * 1000
    assert len(proxy.requests) == asked  # it is immutable: not even asked after again


def test_who_opens_a_store_to_verify_reads_the_servers_bytes(store: S3Store, proxy: FaultyProxy) -> None:
    store.write("runs/r/model", b"weights")
    store.fetch("runs/r/model").write_bytes(b"WEIGHTS")  # a copy that has changed on this machine
    other = open_store(store.address, cache=store._cache.folder)
    assert other.fetch("runs/r/model").read_bytes() == b"weights"
    assert other.fetch("runs/r/model").read_bytes() == b"weights"
    assert proxy.count("GET", "/model") == 2


def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    store: S3Store, large_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_file(large_file, "runs/r/large.bin")
    found = store._s3.find("runs/r/large.bin")
    store.write("runs/r/large.bin", b"other" * 4 * MIB)
    monkeypatch.setattr(store._s3, "find", lambda _key: found)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        store.fetch("runs/r/large.bin")


def test_the_credentials_are_missing(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=r"No credentials for the store s3://bucket/prefix .*AWS_PROFILE"):
        open_store("s3://bucket/prefix").read("key")
    assert proxy.requests == []


def test_a_provider_of_credentials_that_fails_tells_no_secret(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    profile = Path(os.environ["AWS_CONFIG_FILE"])
    profile.write_text("[default]\ncredential_process = sh -c 'echo the-secret >&2; exit 1'\n")
    with pytest.raises(StoreError, match="No credentials") as raised:
        open_store("s3://bucket/prefix").read("key")
    assert "the-secret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_there_is_no_such_bucket(proxy: FaultyProxy) -> None:
    store = open_store("s3://no-such-bucket/prefix")
    for call in (lambda: list(store.list_keys("")), lambda: store.write_if_absent("key", b"")):
        with pytest.raises(StoreError, match="There is no bucket 'no-such-bucket' there"):
            call()


def test_nobody_listens_at_the_endpoint(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"Cannot reach .* at http://127.0.0.1:1 .*AWS_ENDPOINT_URL_S3"):
        check_writable(open_store(f"s3://{BUCKET}/prefix"))


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_PROFILE", "nobody"), ("AWS_MAX_ATTEMPTS", "many"), ("AWS_ENDPOINT_URL_S3", "nowhere")]
)
def test_a_setting_of_boto3_that_makes_no_sense(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="boto3 cannot be set up"):
        open_store("s3://bucket/prefix")


def uploads_under_way(store: S3Store) -> list[str]:
    """Keys of the store's multipart uploads that are neither completed nor aborted."""
    prefix = store._s3.address.full_prefix("")
    page = store._s3.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    return sorted(upload["Key"].removeprefix(prefix) for upload in page.get("Uploads", []))


def limited(listing: Callable[..., object]) -> Callable[..., object]:
    """A listing in pages of two."""
    return lambda **asked: listing(**asked, MaxKeys=2)


@pytest.mark.parametrize("what", ["read", "fetch", "open"])
def test_a_404_that_a_proxy_gives_in_the_servers_place_is_no_missing_object(
    store: S3Store, proxy: FaultyProxy, what: str
) -> None:
    store.write("key", b"value")
    read: Callable[[str], object] = {
        "read": store.read,
        "fetch": lambda key: store.fetch(key).read_bytes(),
        "open": lambda key: store.open(key).read(),
    }[what]
    fault = proxy.fail(Failure.NOT_FOUND, "", "/key", times=2)
    assert read("key") == b"value"
    assert fault.fired == 2
    always = proxy.fail(Failure.NOT_FOUND, "", "/", times=10_000)
    with pytest.raises(StoreUnavailableError, match="Something answers in the server's place"):
        read("other")
    always.times = 0
    with pytest.raises(ObjectMissingError):
        read("other")
