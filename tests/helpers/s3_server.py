"""An S3 server on loopback: moto in this process, or one that is named by HOLDFAST_TEST_S3_ENDPOINT.

Invariant: each store that is opened here has a prefix of its own, and boto3 finds no settings but those of the test.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

from storage.backoff import Backoff
from storage.objects.addresses import open_store
from storage.objects.s3 import connection as s3_connection
from storage.objects.s3.address import SourceBucket
from storage.objects.s3.connection import S3Connection, StoredObject
from storage.objects.s3.store import S3Store
from tests.helpers.faulty_proxy import FaultyProxy, running_proxy

BUCKET = "holdfast-tests"
# Longer than a busy machine takes for any answer: a test that counts requests counts none that was made again for that.
PATIENT_SECONDS = 60
# Another server to use in moto's place, with the credentials that its user has. `ceph_server` starts one by itself.
ENDPOINT_VARIABLE = "HOLDFAST_TEST_S3_ENDPOINT"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": os.environ.get("HOLDFAST_TEST_S3_ACCESS_KEY", "testaccess"),
    "AWS_SECRET_ACCESS_KEY": os.environ.get("HOLDFAST_TEST_S3_SECRET_KEY", "testsecret"),
}


@contextmanager
def running_s3_server() -> Iterator[str]:
    """The endpoint of a server that lives as long as the block."""
    given = os.environ.get(ENDPOINT_VARIABLE)
    if given:
        make_bucket(given)
        yield given
        return
    server = make_server("127.0.0.1", 0, _OneAtATime(), threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        make_bucket(endpoint)
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def s3_environment(endpoint: str, **more: str) -> dict[str, str]:
    """What boto3 is to find in the environment."""
    nowhere = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    return {**CREDENTIALS, **nowhere, "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL_S3": endpoint, **more}


def use_s3(patch: pytest.MonkeyPatch, endpoint: str, **more: str) -> None:
    """Let boto3 find this server, and nothing of the machine's own settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in s3_environment(endpoint, **more).items():
        patch.setenv(name, value)


@contextmanager
def running_hurried_proxy(
    endpoint: str, folder: Path, patch: pytest.MonkeyPatch, timeout_seconds: int = PATIENT_SECONDS
) -> Iterator[FaultyProxy]:
    """A proxy that boto3 takes for the server, for a client that hardly waits before it asks again."""
    profile = folder / "aws.ini"
    profile.write_text(f"[default]\nread_timeout = {timeout_seconds}\nconnect_timeout = {timeout_seconds}\n")
    patch.setattr(s3_connection, "BACKOFF", Backoff(first_seconds=0.01, limit_seconds=20.0))
    with running_proxy(endpoint) as proxy:
        use_s3(patch, proxy.endpoint, AWS_CONFIG_FILE=str(profile))
        yield proxy


def open_s3_store(folder: Path) -> S3Store:
    """An empty store on the server that the environment names; what it fetches is copied to below `folder`."""
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix", cache=folder / "cache")
    assert isinstance(store, S3Store)
    return store


def put_object(key: str, data: bytes) -> StoredObject:
    """Put or replace an object of the bucket, as another program would; the version that it is then."""
    answer = S3Connection(SourceBucket(BUCKET)).client.put_object(Bucket=BUCKET, Key=key, Body=data)
    return StoredObject(len(data), answer["ETag"])


def upload_folder(folder: Path) -> str:
    """The address of a prefix of its own that has the files of a folder, for a source."""
    prefix = f"{uuid.uuid4().hex}/data"
    for path in folder.rglob("*"):
        if path.is_file():
            put_object(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"s3://{BUCKET}/{prefix}/"


def make_bucket(endpoint: str) -> None:
    """The bucket of the tests, on a server that knows their credentials."""
    names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    credentials = {argument: CREDENTIALS[name] for argument, name in names.items()}
    client = boto3.session.Session(region_name="us-east-1").client("s3", endpoint_url=endpoint, **credentials)
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)


class _OneAtATime:
    """moto as a WSGI application. It looks for an object and puts one in two steps: let nobody come between."""

    def __init__(self) -> None:
        # A second to import, in each process that collects tests; one or two of them start a server.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def __call__(self, environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            answer: Iterable[bytes] = self._application(environment, start_response)
            return answer


class _QuietHandler(WSGIRequestHandler):
    """A connection serves many requests, and none of them is printed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, *_arguments: Any) -> None:
        return
