"""Files to and from S3: large ones in chunks, several at a time.

Invariant: an upload that fails is aborted, so the server keeps no part of it; where even that fails, `S3Store.sweep`
does it a day later. The chunks of a download all come from one version of the object.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from botocore.exceptions import ClientError

from storage.errors import ObjectMissingError, StoreError
from storage.objects.s3.connection import PUT_ID, S3Connection, StoredObject, new_put_id
from storage.objects.s3.errors import S3_FAILURES, brief, says_beyond_end, says_missing

# Up to here one request does it. Some servers honour a condition there and ignore it for uploads in parts.
MULTIPART_BYTES = 64 << 20
CHUNK_BYTES = 16 << 20
MAX_PARTS = 10_000
NUM_STREAMS = 8
NUM_STREAMS_OF_RANGES = 4  # of each file of a source: several are read at a time

_logger = logging.getLogger("holdfast")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


# With which an object is put where there is none.
IF_ABSENT = {"IfNoneMatch": "*"}


def upload_file(s3: S3Connection, source: Path, key: str, is_replacing: bool = False) -> None:
    """Put a finished file: in place of an object, or where there is none. Raises `ObjectExistsError`."""
    num_bytes = source.stat().st_size
    put_id = new_put_id()
    if num_bytes <= MULTIPART_BYTES:
        put_bytes(s3, source.read_bytes(), key, put_id, is_replacing)
    else:
        _MultipartUpload(s3, source, num_bytes, key, put_id, is_replacing).run()
    found = s3.find(key)
    if found is None or found.num_bytes != num_bytes:
        raise StoreError(
            f"{s3.address}/{key} was put with {num_bytes} bytes and has {found.num_bytes if found else 'none'} now. "
            "The server lost the object, or another program deleted or replaced it. Find the cause, then run again."
        )


def put_bytes(s3: S3Connection, data: bytes, key: str, put_id: str, is_replacing: bool = False) -> None:
    """Put an object in one request: in place of another one, or if there is none. Raises `ObjectExistsError`."""
    target = s3.target(key) | ({} if is_replacing else IF_ABSENT)
    s3.put_once(
        "PutObject",
        key,
        put_id,
        lambda: s3.client.put_object(**target, Body=data, Metadata={PUT_ID: put_id}, **s3.integrity(data)),
        is_replacing,
    )


def read_object(s3: S3Connection, key: str) -> bytes:
    """An object's bytes. Raises `ObjectMissingError`."""
    target = s3.target(key)

    def read() -> bytes | StoredObject:
        answer = s3.client.get_object(**target)
        with closing(answer["Body"]) as body:  # its own context is the bare stream, which checks nothing
            if answer["ContentLength"] > MULTIPART_BYTES:
                return StoredObject(answer["ContentLength"], answer["ETag"])
            data: bytes = body.read()
            return data

    found = s3.request("GetObject", key, read)
    if isinstance(found, bytes):
        return found
    large = bytearray(found.num_bytes)

    def write_at(start: int, data: bytes) -> None:
        large[start : start + len(data)] = data

    _read_chunks(s3, key, found, write_at)
    return bytes(large)


def download(s3: S3Connection, key: str, found: StoredObject, file: BinaryIO) -> None:
    """Read the version of an object that was found into a file on local disk."""

    _read_chunks(s3, key, found, partial(_write_at, file))


def read_chunks(s3: S3Connection, key: str) -> Iterator[bytes]:
    """An object's bytes in order, one chunk after the other: as much memory as one chunk takes, and no disk.

    Raises `ObjectMissingError`, also when it is deleted meanwhile.
    """
    found = s3.find(key)
    if found is None:
        raise ObjectMissingError(f"{s3.address}/{key} is missing.")
    for start in range(0, found.num_bytes, CHUNK_BYTES):
        yield read_range(s3, key, found, start, min(start + CHUNK_BYTES, found.num_bytes))


def read_range(s3: S3Connection, key: str, found: StoredObject, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end` of the version of the object that was found, in one request.

    Raises `StoreError` if there is another version now, `ObjectMissingError` if there is none.
    """
    target = s3.target(key)
    return s3.request("GetObject", key, lambda: _read_range(s3, target, found, start, end))


def fill_range(s3: S3Connection, key: str, found: StoredObject, start: int, buffer: memoryview) -> None:
    """Fill the buffer with the bytes from `start` on, as `read_range` reads them, in less CPU time."""
    target = s3.target(key)

    def fill() -> None:
        if not s3.parts.fill(target["Bucket"], target["Key"], found.etag, start, buffer):
            buffer[:] = _read_range(s3, target, found, start, start + len(buffer))

    s3.request("GetObject", key, fill)


def download_ranges(
    s3: S3Connection, key: str, found: StoredObject, ranges: Iterable[tuple[int, int]], file: BinaryIO
) -> None:
    """Read parts of the version of an object that was found, each to its position in the file.

    A range is its first byte and the one after its last; one of a few MiB takes one request.
    """
    _in_parallel(
        lambda part: _write_at(file, part[0], read_range(s3, key, found, *part)), ranges, NUM_STREAMS_OF_RANGES
    )


def _read_chunks(s3: S3Connection, key: str, found: StoredObject, write_at: Callable[[int, bytes], None]) -> None:
    def read(start: int) -> None:
        write_at(start, read_range(s3, key, found, start, min(start + CHUNK_BYTES, found.num_bytes)))

    _in_parallel(read, range(0, found.num_bytes, CHUNK_BYTES))


def _write_at(file: BinaryIO, start: int, data: bytes) -> None:
    while data:  # on a disk that is nearly full a write may be cut short without an error
        num_written = os.pwrite(file.fileno(), data, start)
        data, start = data[num_written:], start + num_written


def _read_range(s3: S3Connection, target: dict[str, str], found: StoredObject, start: int, end: int) -> bytes:
    name = f"s3://{target['Bucket']}/{target['Key']}"
    replaced = StoreError(f"{name} was replaced while it was read. Run again when no other program writes to it.")
    try:
        answer = s3.client.get_object(**target, Range=f"bytes={start}-{end - 1}")
    except ClientError as error:
        if says_beyond_end(error):
            raise replaced from error
        if says_missing(error):
            raise ObjectMissingError(f"{name} was deleted while it was read.") from error
        raise
    # Compared here, since older servers refuse every condition with a quoted ETag.
    if answer["ETag"] != found.etag:
        answer["Body"].close()
        raise replaced
    data: bytes = answer["Body"].read()
    if len(data) != end - start:
        raise StoreError(f"{name}: the server was asked for {end - start} bytes of it and sent {len(data)}.")
    return data


@dataclass(frozen=True)
class _MultipartUpload:
    """One file on its way in parts; it becomes an object by the request that completes it."""

    s3: S3Connection
    source: Path
    num_bytes: int
    key: str
    put_id: str
    is_replacing: bool = False

    def run(self) -> None:
        if not self.is_replacing:
            # Before gigabytes are sent; and for the servers that ignore the condition when an upload is completed.
            self.s3.require_absent(self.key)
        upload = self._create()
        try:
            parts = _in_parallel(lambda number: self._put_part(upload, number), range(1, self._num_parts + 1))
            self._complete(upload, parts)
        except BaseException:
            self._abort(upload)
            raise

    @property
    def _part_bytes(self) -> int:
        return max(CHUNK_BYTES, -(-self.num_bytes // MAX_PARTS))

    @property
    def _num_parts(self) -> int:
        return -(-self.num_bytes // self._part_bytes)

    @property
    def _checksum(self) -> dict[str, str]:
        return {} if self.s3.sends_md5 else {"ChecksumAlgorithm": "CRC32"}

    def _create(self) -> dict[str, str]:
        """What every further request of this upload names it by."""
        target = self.s3.target(self.key)
        metadata = {PUT_ID: self.put_id}
        answer = self.s3.request(
            "CreateMultipartUpload",
            self.key,
            lambda: self.s3.client.create_multipart_upload(**target, Metadata=metadata, **self._checksum),
        )
        return {**target, "UploadId": answer["UploadId"]}

    def _put_part(self, upload: dict[str, str], number: int) -> dict[str, Any]:
        with self.source.open("rb") as file:
            data = os.pread(file.fileno(), self._part_bytes, (number - 1) * self._part_bytes)
        arguments = {**upload, "PartNumber": number, "Body": data, **self._checksum, **self.s3.integrity(data)}
        answer = self.s3.request("UploadPart", self.key, lambda: self.s3.client.upload_part(**arguments))
        stated = {name: answer[name] for name in ("ETag", "ChecksumCRC32") if name in answer}
        return {"PartNumber": number, **stated}

    def _complete(self, upload: dict[str, str], parts: list[dict[str, Any]]) -> None:
        self.s3.put_once(
            "CompleteMultipartUpload",
            self.key,
            self.put_id,
            lambda: self.s3.client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}, **({} if self.is_replacing else IF_ABSENT)
            ),
            self.is_replacing,
        )

    def _abort(self, upload: dict[str, str]) -> None:
        """Let the server drop the parts. The error to raise is why the upload failed, not that this failed, too."""
        try:
            self.s3.client.abort_multipart_upload(**upload)
        except S3_FAILURES as error:
            _logger.warning(
                "The parts of %s/%s could not be removed (%s); that is done in a day.",
                self.s3.address,
                self.key,
                brief(error),
            )


def _in_parallel(
    work: Callable[[_Item], _Result], items: Iterable[_Item], num_streams: int = NUM_STREAMS
) -> list[_Result]:
    """`work` for all items, several at a time, in their order; the first failure ends it."""
    with ThreadPoolExecutor(num_streams, thread_name_prefix="s3") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
