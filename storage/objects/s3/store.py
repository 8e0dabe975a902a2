"""A store in an S3 bucket, or under a prefix of one, on AWS or any server that speaks S3 and honours put-if-absent.

All that is not the address comes from boto3's ordinary chain, so that one setting serves every tool and the address
means the same to each machine: credentials (AWS_ACCESS_KEY_ID..., AWS_PROFILE, a role), AWS_ENDPOINT_URL_S3,
AWS_DEFAULT_REGION, AWS_MAX_ATTEMPTS (6 if not given), AWS_CA_BUNDLE; for servers that do not know today's checksums
AWS_REQUEST_CHECKSUM_CALCULATION=when_required, whereupon Content-MD5 is sent instead. The same stand in a profile of
~/.aws/config as endpoint_url, region, max_attempts, ca_bundle and request_checksum_calculation; and there alone, in
seconds, connect_timeout and read_timeout (10 and 60 if not given).

Invariant: a key names a complete object or none, and a put that may happen once happens once, whatever becomes of the
answer: see `connection`. The one exception: where a server ignores the condition on CompleteMultipartUpload, of two
simultaneous `put_file` of one key and more than 64 MiB the later stands. No two of ours have one key and other bytes.
"""

import hashlib
import io
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from storage.errors import ObjectMissingError, StoreError
from storage.objects.download_cache import DownloadCache, default_cache_folder
from storage.objects.s3.address import parse_s3_address
from storage.objects.s3.connection import NEXT_OBJECTS, S3Connection, StoredObject, new_put_id
from storage.objects.s3.errors import S3_FAILURES, says_upload_is_over
from storage.objects.s3.reader import open_exactly
from storage.objects.s3.transfers import download, put_bytes, read_chunks, read_object, upload_file

SWEEP_AGE = timedelta(days=1)
# Where files are put. In a bucket that is not ours alone, other uploads under way are none of our business.
SWEPT_PREFIXES = ("datasets/", "preparations/", "runs/")
# Data sets are immutable under the digest of their inputs, and their shards are read again and again.
SHARED_PREFIX = "datasets/"


class S3Store:
    """The `Store` protocol over a bucket prefix.

    A data set's shard is downloaded once per machine and asked after once per store. Anything else is downloaded once
    by each opened store and asked after each time: who opens a store to verify a checkpoint reads the server's bytes,
    not those that an earlier process has left on the disk. A caller that compares with a known hash may get those.
    What is opened is no copy, and of a shard the version that was there when it was first opened.
    """

    page_keys = 1000  # of one answer of a server, by the protocol

    def __init__(self, connection: S3Connection, cache: DownloadCache) -> None:
        self._s3 = connection
        self._cache = cache
        self._fetched: dict[str, tuple[str, int]] = {}
        self._opened: dict[str, StoredObject] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return str(self._s3.address)

    def read(self, key: str) -> bytes:
        return read_object(self._s3, key)

    def write(self, key: str, data: bytes) -> None:
        target = self._s3.target(key)
        self._s3.request(
            "PutObject",
            key,
            lambda: self._s3.client.put_object(**target, Body=data, **self._s3.integrity(data)),
        )

    def write_if_absent(self, key: str, data: bytes) -> None:
        put_bytes(self._s3, data, key, new_put_id())

    def put_file(self, source: Path, key: str) -> None:
        self._upload(source, key)

    def replace_file(self, source: Path, key: str) -> None:
        self._upload(source, key, is_replacing=True)

    def fetch(self, key: str, is_checked: bool = False) -> Path:
        known = self._find_known(key) if key.startswith(SHARED_PREFIX) else None
        if known is not None:
            return known
        found = self._find(key)
        copy = (self._copy_name(key, found), found.num_bytes)
        is_trusted = key.startswith(SHARED_PREFIX) or self._fetched.get(key) == copy
        anew = not (is_trusted or is_checked)
        path = self._cache.get(*copy, lambda file: download(self._s3, key, found, file), anew=anew)
        if anew or is_trusted:
            with self._lock:
                self._fetched[key] = copy
        return path

    def open(self, key: str) -> io.RawIOBase:
        found = self._opened.get(key) or self._find(key)
        if key.startswith(SHARED_PREFIX):
            with self._lock:
                self._opened[key] = found
        return open_exactly(self._s3, key, found)

    def read_chunks(self, key: str) -> Iterator[bytes]:
        return read_chunks(self._s3, key)

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        full_prefix = self._s3.address.full_prefix(prefix)
        start = len(full_prefix) - len(prefix)
        limits: dict[str, Any] = {"StartAfter": self._s3.address.full_prefix(after)} if after else {}
        if most is not None and most < self.page_keys:
            limits["MaxKeys"] = most
        keys: list[str] = []
        for page in self._s3.pages("list_objects_v2", prefix, NEXT_OBJECTS, **limits):
            found = [entry["Key"][start:] for entry in page.get("Contents", [])]
            # A console makes an empty object with a slash at its end for each folder. Not every server begins `after`.
            keys += [key for key in found if key > after and not key.endswith("/")]
            if most is not None and len(keys) >= most and found == sorted(found):
                break
        yield from sorted(keys)[:most]  # not every server lists in order

    def delete(self, key: str) -> None:
        target = self._s3.target(key)
        self._s3.request("DeleteObject", key, lambda: self._s3.client.delete_object(**target))
        with self._lock:
            self._fetched.pop(key, None)
            self._opened.pop(key, None)

    def sweep(self) -> None:
        oldest = datetime.now(UTC) - SWEEP_AGE
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for prefix in SWEPT_PREFIXES:
            for page in self._s3.pages("list_multipart_uploads", prefix, markers):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"] < oldest:
                        self._abort(upload["Key"], upload["UploadId"], prefix)

    def _upload(self, source: Path, key: str, is_replacing: bool = False) -> None:
        try:
            upload_file(self._s3, source, key, is_replacing)
        except OSError as error:
            raise StoreError(f"Cannot read {source} to put it into the store {self.address}: {error}.") from error

    def _find(self, key: str) -> StoredObject:
        found = self._s3.find(key)
        if found is None:
            raise ObjectMissingError(f"{self.address}/{key} is missing.")
        return found

    def _find_known(self, key: str) -> Path | None:
        """The copy that this store has fetched before, if it is still there."""
        copy = self._fetched.get(key)
        return self._cache.find(*copy) if copy else None

    def _copy_name(self, key: str, found: StoredObject) -> str:
        """A name for this version of the object. It ends like the key, for those who read it in a message."""
        server = self._s3.client.meta.endpoint_url
        version = f"{server}\n{self.address}\n{key}\n{found.etag}\n{found.num_bytes}\n{found.put_id}"
        return f"{hashlib.sha256(version.encode()).hexdigest()[:32]}-{key.rpartition('/')[2][-100:]}"

    def _abort(self, full_key: str, upload_id: str, prefix: str) -> None:
        def abort() -> None:
            try:
                self._s3.client.abort_multipart_upload(Bucket=self._s3.address.bucket, Key=full_key, UploadId=upload_id)
            except S3_FAILURES as error:
                if not says_upload_is_over(error):  # another sweeper may be quicker
                    raise

        self._s3.request("AbortMultipartUpload", prefix, abort)


def open_s3_store(address: str, cache: Path | None = None) -> S3Store:
    """The store at `s3://bucket/prefix`; nothing is sent yet. Copies go into the folder `cache`.

    Raises `ConfigurationError` if the address or boto3's configuration makes no sense.
    """
    return S3Store(S3Connection(parse_s3_address(address)), DownloadCache(cache or default_cache_folder()))
