"""Parts of objects, for a loader that reads thousands of them: urllib3 asks for them at addresses that boto3 signs.

boto3 makes and signs each request anew. The signature of an address does not depend on the part, so all parts of an
object share it for some minutes. Invariant: what is filled in are the bytes that were asked for, of the version that
was asked for. Any other answer is left to boto3, which asks again and raises the error.
"""

import io
import math
import os
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies
from urllib3 import HTTPConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection
from urllib3.util import parse_url

from storage.objects.s3.errors import TRANSIENT_STATUS

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PARTIAL_CONTENT = 206
# How long an address is used; and signed for, since servers allow clocks to differ by fifteen minutes.
USED_SECONDS = 5 * 60
SIGNED_SECONDS = USED_SECONDS + 15 * 60
NUM_ADDRESSES = 1024
# After an answer that is not what was asked for; where it always is, so few requests more cost nothing.
UNUSED_SECONDS = 5 * 60
# A body comes in chunks of 64 KiB and less, and to wake up for each of them costs CPU time.
AWAITED_BYTES = 1 << 20


class Parts:
    """Receives parts of objects. Threads may share it.

    `signer` is a boto3 client whose signature is `s3v4`, and `ca_bundle` the one that it was given, if it was.
    """

    def __init__(self, signer: Any, ca_bundle: str | None) -> None:
        config = signer.meta.config
        self._signer = signer
        self._http = PoolManager(
            maxsize=config.max_pool_connections,
            timeout=Timeout(connect=config.connect_timeout, read=config.read_timeout),
            retries=False,
            ca_certs=get_cert_path(ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True),
        )
        # boto3 knows which headers a proxy needs.
        self._of_use_from = math.inf if get_environ_proxies(signer.meta.endpoint_url) else 0.0
        self._address = lru_cache(maxsize=NUM_ADDRESSES)(self._sign)

    def fill(self, bucket: str, key: str, etag: str, start: int, buffer: memoryview) -> bool:
        """Fill the buffer with the bytes from `start` on of this version of an object.

        False: boto3 is to be asked, now and for some minutes. What may pass raises an error of boto3's or urllib3's.
        """
        if time.monotonic() < self._of_use_from:
            return False
        pool, target = self._address(bucket, key, int(time.time() // USED_SECONDS))
        headers = {
            "User-Agent": self._signer.meta.config.user_agent,
            "Range": f"bytes={start}-{start + len(buffer) - 1}",
        }
        answer = pool.urlopen("GET", target, headers=headers, retries=False, redirect=False, preload_content=False)
        found = (answer.status, answer.headers.get("ETag"), answer.headers.get("Content-Length"))
        if found == (PARTIAL_CONTENT, etag, str(len(buffer))):
            buffer[:] = answer.read(decode_content=False)
            return True
        if answer.status in TRANSIENT_STATUS:
            facts = {"status_code": answer.status, "headers": answer.headers, "body": answer.data}
            raise ClientError(create_parser("rest-xml").parse(facts, None), "GetObject")
        answer.close()
        self._of_use_from = time.monotonic() + UNUSED_SECONDS
        return False

    def _sign(self, bucket: str, key: str, _period: int) -> tuple[HTTPConnectionPool, str]:
        """The connections to an object's server, and the signed address of the object there."""
        names = {"Bucket": bucket, "Key": key}
        address = self._signer.generate_presigned_url("get_object", Params=names, ExpiresIn=SIGNED_SECONDS)
        pool = self._http.connection_from_url(address)
        if pool.scheme == "http":  # of TLS, the bytes on the socket are not those of the body
            pool.ConnectionCls = _Connection
        return pool, parse_url(address).request_uri


class _Socket(socket.socket):
    """Wakes who reads a large chunk when all of it has come, or much, and not for each packet."""

    _most_awaited = AWAITED_BYTES
    _awaited = 1

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """As of any socket. Who asks for more than a buffer knows, from the answer's length, that so much will come."""
        wanted = nbytes or memoryview(buffer).nbytes
        self._await_bytes(min(wanted, self._most_awaited) if wanted > io.DEFAULT_BUFFER_SIZE else 1)
        try:
            return super().recv_into(buffer, nbytes, flags)
        except TimeoutError:
            if self._awaited == 1:
                raise
        # On a slow link less has come. One that hangs raises its time-out now.
        self._most_awaited = 1
        self._await_bytes(1)
        return super().recv_into(buffer, nbytes, flags)

    def _await_bytes(self, num_bytes: int) -> None:
        if num_bytes != self._awaited:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._awaited = num_bytes


class _Connection(HTTPConnection):
    """A connection with such a socket."""

    def connect(self) -> None:
        super().connect()
        timeout = self.sock.gettimeout()
        self.sock = _Socket(fileno=self.sock.detach())
        self.sock.settimeout(timeout)
