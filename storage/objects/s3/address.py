"""The address `s3://bucket/prefix` of a store in a bucket.

Invariant: it names a bucket and a prefix and nothing else. Endpoint, region and credentials are the environment's, so
an address can be printed and written down, and means the same object from every machine.
"""

import re
from dataclasses import dataclass

from storage.errors import ConfigurationError
from storage.objects.keys import split_key

SCHEME = "s3"
BUCKET_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")


@dataclass(frozen=True)
class S3Address:
    """A bucket, and the prefix under which the store's keys stand: empty, or parts joined by `/`."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}://{self.bucket}/{self.prefix}".rstrip("/")

    def full_prefix(self, prefix: str) -> str:
        """What the bucket's keys begin with where the store's begin with `prefix`."""
        return f"{self.prefix}/{prefix}" if self.prefix else prefix

    def full_key(self, key: str) -> str:
        """The bucket's key of a store's key. Raises `ValueError` if it is none."""
        return self.full_prefix("/".join(split_key(key)))


def parse_s3_address(text: str) -> S3Address:
    """The address that a user typed. Raises `ConfigurationError`."""
    bucket, _, prefix = text.removeprefix(f"{SCHEME}://").partition("/")
    prefix = prefix.rstrip("/")
    if not BUCKET_PATTERN.fullmatch(bucket) or not _is_prefix(prefix):
        raise ConfigurationError(
            f"store = {without_secrets(text)!r} is not an address of the form s3://bucket/prefix. Endpoint, region and "
            "credentials do not belong into it: boto3 takes them from AWS_ENDPOINT_URL_S3, AWS_DEFAULT_REGION, "
            "AWS_PROFILE and the like."
        )
    return S3Address(bucket, prefix)


def without_secrets(text: str) -> str:
    """An address or an endpoint as it may be printed: without what stands where some tools expect a password."""
    return re.sub(r"//[^/]*@", "//...@", text).partition("?")[0]


def _is_prefix(prefix: str) -> bool:
    if set("?#") & set(prefix):
        return False  # meant as a parameter, most likely
    try:
        return not prefix or bool(split_key(prefix))
    except ValueError:
        return False
