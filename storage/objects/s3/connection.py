"""Requests to S3 for one store or source, and the only module that makes them again.

Every request that may be repeated goes through `request`: bounded, jittered, logged as attempt i of n; boto3's own
retries are off. A put that may happen only once goes through `put_once`. Invariant: whether such a put was ours is
decided by an id that stands in the object's metadata, never by the answer, which may have been lost after it took
place. So a reply that got lost is no conflict, and another writer with the same bytes is one.
"""

import base64
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from storage.backoff import Backoff
from storage.errors import HoldfastError, ObjectExistsError
from storage.objects.s3.address import S3Address, without_secrets
from storage.objects.s3.clients import Clients, make_clients
from storage.objects.s3.errors import (
    CREDENTIAL_ERRORS,
    S3_FAILURES,
    brief,
    explain,
    is_transient,
    is_without_name,
    says_existing,
    says_missing,
    says_refused,
    says_upload_is_over,
)
from storage.objects.s3.parts import Parts

BACKOFF = Backoff(first_seconds=0.5, limit_seconds=20.0)
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
    """boto3's clients for one store or source. Threads may share it.

    Raises `ConfigurationError` if boto3's environment and profile make no sense. Nothing is sent yet.
    """

    def __init__(self, address: S3Address) -> None:
        self.address = address
        self._clients = make_clients(address)
        self._renewal = threading.Lock()

    @property
    def client(self) -> Any:
        """The boto3 client to send a request with: ask for it each time, since it is replaced when its key is."""
        return self._clients.client

    @property
    def sends_md5(self) -> bool:
        """Whether Content-MD5 is sent in place of boto3's own checksum."""
        return self._clients.sends_md5

    @property
    def parts(self) -> Parts:
        """What receives parts of objects; replaced as `client` is."""
        return self._clients.parts

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
                return self._send(send)
            except S3_FAILURES as error:
                if attempt >= self._clients.attempts or not is_transient(error):
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
        name = operation.title().replace("_", "")
        arguments: dict[str, Any] = {"Bucket": self.address.bucket, "Prefix": self.address.full_prefix(prefix), **more}
        while True:
            page: dict[str, Any] = self.request(name, prefix, partial(self._ask, operation, arguments))
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
                self._send(put)
                return
            except S3_FAILURES as error:
                if not (is_transient(error) or says_existing(error) or says_upload_is_over(error)):
                    raise_explained(error, self, key)
                if self._is_settled(key, put_id, is_replacing):
                    return
                if attempt >= self._clients.attempts or says_upload_is_over(error):
                    raise_explained(error, self, key)
                self.pause(f"{name} of {self.address}/{key}", attempt, error)
            attempt += 1

    def require_absent(self, key: str) -> None:
        """Raise `ObjectExistsError` if there is an object with this key."""
        if self.find(key) is not None:
            raise self._existing(key)

    def pause(self, what: str, attempt: int, error: Exception) -> None:
        """Log that an attempt failed, and wait before the next one, each time about twice as long."""
        seconds, attempts = BACKOFF.draw_seconds(attempt), f"{attempt} of {self._clients.attempts}"
        _logger.warning("%s: attempt %s failed (%s), again in %.1f s.", what, attempts, brief(error), seconds)
        time.sleep(seconds)  # a server that is overloaded does not signal when that is over

    def _ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        return getattr(self.client, operation)(**arguments)

    def _send(self, send: Callable[[], _Result]) -> _Result:
        """`send`, and once more if the server refuses the key and boto3 finds another one by now."""
        clients = self._clients
        try:
            return send()
        except S3_FAILURES as error:
            if not (says_refused(error) and self._renew(clients)):
                raise
        return send()

    def _renew(self, refused: Clients) -> bool:
        """Whether there are, by now, clients with another key than the refused ones."""
        with self._renewal:
            if self._clients is not refused:
                return True
            try:
                if not refused.are_outdated():
                    return False
                self._clients = make_clients(self.address)
            except (HoldfastError, *S3_FAILURES):
                return False  # a file that is just being written; what was refused is the error to raise
            _logger.warning("%s refuses the key in use. boto3 finds another one now, which is used.", self.address)
            return True

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


def new_put_id() -> str:
    """An id for one put, to be found in the object's metadata."""
    return uuid.uuid4().hex


def raise_explained(error: Exception, connection: S3Connection, key: str) -> NoReturn:
    """Raise the error with a message for a person instead of S3's own error."""
    endpoint = connection.client.meta.endpoint_url
    explained: HoldfastError = explain(error, connection.address, key, without_secrets(endpoint))
    # What a provider of credentials printed when it failed stands in its error: no traceback may carry that on.
    raise explained from (None if isinstance(error, CREDENTIAL_ERRORS) else error)
