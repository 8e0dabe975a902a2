"""Requests to S3 for one store or source, and the only module that makes them again.

Every request that may be repeated goes through `request`: bounded, jittered, logged as attempt i of n; boto3's own
retries are off. A put that may happen only once goes through `put_once`. Invariant: whether such a put was ours is
decided by an id that stands in the object's metadata, never by the answer, which may have been lost after it took
place. So a reply that got lost is no conflict, and another writer with the same bytes is one.
"""

import base64
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn, TypeVar

import botocore.session
from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from storage.backoff import Backoff
from storage.errors import ConfigurationError, HoldfastError, ObjectExistsError
from storage.objects.s3.address import S3Address, without_secrets
from storage.objects.s3.errors import (
    CREDENTIAL_ERRORS,
    S3_FAILURES,
    brief,
    explain,
    is_transient,
    is_without_name,
    says_existing,
    says_missing,
    says_upload_is_over,
)
from storage.objects.s3.parts import Parts

DEFAULT_ATTEMPTS = 6
BACKOFF = Backoff(first_seconds=0.5, limit_seconds=20.0)
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 60.0
MAX_CONNECTIONS = 32
PUT_ID = "holdfast-put"
# How a listing of objects goes on, for `S3Connection.pages`.
NEXT_OBJECTS = {"ContinuationToken": "NextContinuationToken"}

_logger = logging.getLogger("holdfast")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoredObject:
    """What the server reports of a version of an object; `put_id`, where it is known, names the put that it is from."""

    num_bytes: int
    etag: str
    put_id: str | None = None


class S3Connection:
    """A boto3 client for one store or source. Threads may share it."""

    def __init__(self, client: Any, parts: Parts, address: S3Address, attempts: int, sends_md5: bool) -> None:
        self.client = client
        self.parts = parts
        self.address = address
        self.attempts = attempts
        self.sends_md5 = sends_md5

    def target(self, key: str) -> dict[str, str]:
        """How a request names an object. Raises `ValueError` if `key` is none."""
        return {"Bucket": self.address.bucket, "Key": self.address.full_key(key)}

    def integrity(self, data: bytes) -> dict[str, str]:
        """What lets the server check the bytes it got: boto3's own checksum does, but where it is off."""
        if not self.sends_md5:
            return {}
        return {"ContentMD5": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()}

    def request(self, name: str, key: str, send: Callable[[], _Result]) -> _Result:
        """`send`, made again while that may help. Raises `ObjectMissingError`, or `StoreError` with what to do."""
        attempt = 1
        while True:
            try:
                return send()
            except S3_FAILURES as error:
                if attempt >= self.attempts or not is_transient(error):
                    raise_explained(error, self, key)
                self.pause(f"{name} of {self.address}/{key}", attempt, error)
            attempt += 1

    def find(self, key: str) -> StoredObject | None:
        """What the server reports of an object, or None if there is none."""
        target = self.target(key)

        def head() -> StoredObject | None:
            try:
                answer = self.client.head_object(**target)
            except S3_FAILURES as error:
                if not is_without_name(error):
                    raise
                return self._find_by_get(target)
            return _describe(answer)

        return self.request("HeadObject", key, head)

    def _find_by_get(self, target: dict[str, str]) -> StoredObject | None:
        """As `find`, by a request whose answer has a body: only there the server names the object as missing."""
        try:
            answer = self.client.get_object(**target)
        except S3_FAILURES as error:
            if says_missing(error):
                return None
            raise
        answer["Body"].close()
        return _describe(answer)

    def pages(self, operation: str, prefix: str, markers: dict[str, str], **more: Any) -> Iterator[dict[str, Any]]:
        """The pages of a listing. `markers` maps arguments to the fields of the page before from which they go on."""
        send, name = getattr(self.client, operation), operation.title().replace("_", "")
        arguments: dict[str, Any] = {"Bucket": self.address.bucket, "Prefix": self.address.full_prefix(prefix), **more}
        while True:
            page: dict[str, Any] = self.request(name, prefix, partial(send, **arguments))
            yield page
            if not page.get("IsTruncated"):
                return
            arguments |= {argument: page[field] for argument, field in markers.items() if page.get(field)}

    def put_once(self, name: str, key: str, put_id: str, put: Callable[[], object], is_replacing: bool = False) -> None:
        """`put`, which puts the object with `put_id`, and where none is. Raises `ObjectExistsError`.

        One that `is_replacing` what is there has no condition.

        A refusal and no answer at all mean the same: look who put what is there, and try again if nothing is.
        """
        attempt = 1
        while True:
            try:
                put()
                return
            except S3_FAILURES as error:
                if not (is_transient(error) or says_existing(error) or says_upload_is_over(error)):
                    raise_explained(error, self, key)
                if self._is_settled(key, put_id, is_replacing):
                    return
                if attempt >= self.attempts or says_upload_is_over(error):
                    raise_explained(error, self, key)
                self.pause(f"{name} of {self.address}/{key}", attempt, error)
            attempt += 1

    def require_absent(self, key: str) -> None:
        """Raise `ObjectExistsError` if there is an object with this key."""
        if self.find(key) is not None:
            raise self._existing(key)

    def pause(self, what: str, attempt: int, error: Exception) -> None:
        """Log that an attempt failed, and wait before the next one, each time about twice as long."""
        seconds = BACKOFF.draw_seconds(attempt)
        _logger.warning(
            "%s: attempt %d of %d failed (%s), again in %.1f s.", what, attempt, self.attempts, brief(error), seconds
        )
        time.sleep(seconds)  # a server that is overloaded does not signal when that is over

    def _is_settled(self, key: str, put_id: str, is_replacing: bool) -> bool:
        """Whether the put with this id took place. Raises `ObjectExistsError` if another one did."""
        found = self.find(key)
        if found is None or found.put_id == put_id:
            return found is not None
        if is_replacing:
            return False
        raise self._existing(key)

    def _existing(self, key: str) -> ObjectExistsError:
        return ObjectExistsError(f"{self.address}/{key} exists already and objects are never changed.")


def _describe(answer: dict[str, Any]) -> StoredObject:
    return StoredObject(answer["ContentLength"], answer["ETag"], answer["Metadata"].get(PUT_ID))


def connect(address: S3Address) -> S3Connection:
    """A connection as boto3's environment and profile describe it; nothing is sent yet.

    Raises `ConfigurationError` if they make no sense.
    """
    try:
        session = botocore.session.Session()
        session.register_component("data_loader", _api_descriptions())
        profile = session.get_scoped_config()
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=float(profile.get("connect_timeout", CONNECT_TIMEOUT_SECONDS)),
            read_timeout=float(profile.get("read_timeout", READ_TIMEOUT_SECONDS)),
            max_pool_connections=MAX_CONNECTIONS,
        )
        attempts = session.get_config_variable("max_attempts") or DEFAULT_ATTEMPTS
        make_client = partial(Session(botocore_session=session).client, "s3")
        # By default boto3 signs addresses in a way that AWS has given up.
        signer = make_client(config=config.merge(Config(signature_version="s3v4")))
        client, parts = make_client(config=config), Parts(signer, session.get_config_variable("ca_bundle"))
    except CREDENTIAL_ERRORS as error:
        raise explain(error, address, "", "its endpoint") from None
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{address.setting} = '{address}': boto3 cannot be set up from the environment and the profile: "
            f"{without_secrets(str(error))} Check the variables that begin with AWS_, and the files in ~/.aws."
        ) from error
    sends_md5 = client.meta.config.request_checksum_calculation == "when_required"
    return S3Connection(client, parts, address, attempts, sends_md5)


@lru_cache(maxsize=1)
def _api_descriptions() -> Any:
    """What boto3 knows of S3, in JSON. Reading it takes nine tenths of the time in which a store is opened."""
    return botocore.session.Session().get_component("data_loader")


def new_put_id() -> str:
    """An id for one put, to be found in the object's metadata."""
    return uuid.uuid4().hex


def raise_explained(error: Exception, connection: S3Connection, key: str) -> NoReturn:
    """Raise the error with a message for a person instead of S3's own error."""
    endpoint = connection.client.meta.endpoint_url
    explained: HoldfastError = explain(error, connection.address, key, without_secrets(endpoint))
    # What a provider of credentials printed when it failed stands in its error: no traceback may carry that on.
    raise explained from (None if isinstance(error, CREDENTIAL_ERRORS) else error)
