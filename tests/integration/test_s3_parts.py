"""Parts of objects that a loader asks for without boto3: what comes of them, and when boto3 is asked all the same.

All is tried on moto and on Ceph, which checks signatures. A proxy before the server fails as networks and servers do.
"""

import ssl
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from flows.own_prefect import PROXY_SETTINGS
from storage.errors import ObjectMissingError, StoreError, StoreUnavailableError
from storage.objects.s3 import parts
from storage.objects.s3 import store as s3_store
from storage.objects.s3.parts import Parts
from storage.objects.s3.store import S3Store
from tests.helpers.faulty_proxy import Failure, FaultyProxy, running_proxy
from tests.helpers.s3_server import PATIENT_SECONDS, open_s3_store, running_hurried_proxy, use_s3

KEY = "runs/r/a file with ä space"
DATA = bytes(range(256)) * 4000
# boto3 sends it with each of its requests, and nothing else does.
BOTO3_HEADER = "amz-sdk-invocation-id"
IMPATIENT_SECONDS = 2


@pytest.fixture(
    scope="module", params=[pytest.param("s3", marks=pytest.mark.server), pytest.param("ceph", marks=pytest.mark.ceph)]
)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_endpoint"))


@pytest.fixture
def proxy(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[FaultyProxy]:
    with running_hurried_proxy(server, tmp_path, monkeypatch, getattr(request, "param", PATIENT_SECONDS)) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultyProxy, tmp_path: Path) -> S3Store:
    return store_with_object(tmp_path)


def store_with_object(folder: Path) -> S3Store:
    """One whose object nobody has read yet."""
    opened = open_s3_store(folder)
    opened.write(KEY, DATA)
    return opened


def read(store: S3Store, start: int, end: int) -> bytes:
    with store.open(KEY) as file:
        file.seek(start)
        return file.read(end - start) or b""


def askers(proxy: FaultyProxy) -> list[str]:
    """Who asked for each part, in order."""
    headers = [{name.lower() for name in headers} for headers in proxy.headers]
    return ["boto3" if BOTO3_HEADER in names else "urllib3" for names in headers if "range" in names]


def num_connections(store: S3Store, proxy: FaultyProxy) -> int:
    """How many were opened so far for parts."""
    return int(store._s3.parts._http.connection_from_url(proxy.endpoint).num_connections)


def test_parts_are_asked_for_without_boto3_over_one_connection_and_one_signed_address(
    store: S3Store, proxy: FaultyProxy
) -> None:
    for start, end in ((10, 500_000), (7, 8), (0, len(DATA))):
        assert read(store, start, end) == DATA[start:end]
    assert askers(proxy) == ["urllib3"] * 3
    assert num_connections(store, proxy) == 1
    addresses = {
        path for (method, path), headers in zip(proxy.requests, proxy.headers, strict=True) if "Range" in headers
    }
    assert len(addresses) == 1 and "X-Amz-Signature" in addresses.pop()


def test_threads_share_the_connections(store: S3Store, proxy: FaultyProxy) -> None:
    starts = range(0, len(DATA), 10_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: read(store, start, start + 10_000), starts))
    assert b"".join(found) == DATA
    assert num_connections(store, proxy) <= 4 and set(askers(proxy)) == {"urllib3"}


def test_a_connection_that_the_server_has_closed_is_opened_again(
    store: S3Store, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    fault = proxy.fail(Failure.CLOSED, "GET")
    for start in (0, 5):
        assert read(store, start, 20) == DATA[start:20]
    assert fault.fired == 1
    assert askers(proxy) == ["urllib3"] * 2 and not caplog.records


@pytest.mark.parametrize(
    ("failure", "proxy", "name"),
    [
        (Failure.SLOW_DOWN, PATIENT_SECONDS, "503 SlowDown"),
        (Failure.REPLY_IS_ERROR, PATIENT_SECONDS, "500 InternalError"),
        (Failure.RESET, PATIENT_SECONDS, "ProtocolError"),
        (Failure.CUT, PATIENT_SECONDS, "ProtocolError"),
        (Failure.SHORT, PATIENT_SECONDS, "ProtocolError"),
        (Failure.HANG, IMPATIENT_SECONDS, "ReadTimeoutError"),
    ],
    indirect=["proxy"],
)
def test_what_may_pass_is_tried_again_as_often_as_any_request_and_no_traceback_has_the_signature(
    store: S3Store, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture, failure: Failure, name: str
) -> None:
    fault = proxy.fail(failure, "GET", times=100)
    with pytest.raises(StoreUnavailableError, match=name) as raised:
        read(store, 10, 1_000_000)
    assert fault.fired == store._s3._clients.attempts == len(caplog.records) + 1
    assert "Signature" not in "".join(traceback.format_exception(raised.value)) + caplog.text
    fault.times = 0
    assert read(store, 10, 1_000_000) == DATA[10:1_000_000]
    assert set(askers(proxy)) == {"urllib3"}


def test_an_object_that_is_replaced_or_deleted_while_it_is_read_is_noticed(store: S3Store) -> None:
    for data in (DATA[::-1], b"short"):
        with store.open(KEY) as file:
            store.write(KEY, data)
            file.seek(10)
            with pytest.raises(StoreError, match="was replaced while it was read"):
                file.read(20)
    with store.open(KEY) as file:
        store.delete(KEY)
        with pytest.raises(ObjectMissingError, match="was deleted while it was read"):
            file.read(5)


def test_where_a_signed_address_is_refused_boto3_is_asked_for_some_minutes(
    store: S3Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = proxy.fail(Failure.REFUSED, "GET", "X-Amz-Signature", times=100)
    for _ in range(2):
        assert read(store, 10, 5000) == DATA[10:5000]
    assert fault.fired == 1
    assert askers(proxy) == ["urllib3", "boto3", "boto3"]
    fault.times = 0
    now = time.monotonic()
    later = SimpleNamespace(time=time.time, monotonic=lambda: now + parts.UNUSED_SECONDS)
    monkeypatch.setattr(parts, "time", later)
    assert read(store, 10, 5000) == DATA[10:5000]
    assert askers(proxy)[-1] == "urllib3"


def test_where_an_address_has_expired_boto3_is_asked(
    ceph_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SIGNED_SECONDS", 1)
    monkeypatch.setattr(parts, "USED_SECONDS", 1e9)  # or the clock may come to where the next address is signed
    with running_hurried_proxy(ceph_endpoint, tmp_path, monkeypatch) as proxy:
        store = store_with_object(tmp_path)
        assert read(store, 0, 10) == DATA[:10]
        time.sleep(2)  # signed are whole seconds
        assert read(store, 10, 5000) == DATA[10:5000]
        assert askers(proxy) == ["urllib3", "urllib3", "boto3"]


def test_an_address_is_signed_anew_in_time(store: S3Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "USED_SECONDS", 1e-6)
    for _ in range(2):
        read(store, 0, 10)
    assert store._s3.parts._address.cache_info().misses == 2
    assert askers(proxy) == ["urllib3"] * 2


def test_the_token_of_a_session_is_sent(s3_proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert read(store_with_object(tmp_path), 10, 20) == DATA[10:20]
    assert s3_proxy.count("GET", "X-Amz-Security-Token=token") == 1


def test_https_is_used_with_the_certificates_that_boto3_is_given_and_no_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    use_s3(monkeypatch, server)
    address = store_with_object(tmp_path).address
    with running_proxy(server, tls=tls) as proxy:
        use_s3(monkeypatch, proxy.endpoint, AWS_CA_BUNDLE=str(tmp_path / "authority.pem"))
        store = s3_store.open_s3_store(address)
        assert read(store, 10, 1_000_000) == DATA[10:1_000_000]
        assert askers(proxy) == ["urllib3"]
        without_certificate = replace(store._s3._clients, parts=Parts(store._s3.client, None))
        monkeypatch.setattr(store._s3, "_clients", without_certificate)
        with pytest.raises(StoreError, match="SSLError"):
            read(store, 10, 20)
        assert askers(proxy) == ["urllib3"] and not caplog.records  # nor is it tried again


def test_behind_a_proxy_boto3_is_asked(
    server: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
    monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
    for name in PROXY_SETTINGS:
        monkeypatch.setenv(name, "")
    assert read(store_with_object(tmp_path), 10, 5000) == DATA[10:5000]
    assert askers(proxy) == ["boto3"]
