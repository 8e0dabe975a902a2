"""The address `s3://bucket/prefix` of a store in a bucket, and that of a bucket which has a user's own files.

Invariant: it names a bucket and a prefix and nothing else. Endpoint, region and credentials are the environment's, so
an address can be printed and written down, and means the same object from every machine.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from storage.errors import ConfigurationError
from storage.objects.keys import split_key

SCHEME = "s3"
SOURCE_SETTING = "data.source"
BUCKET_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")
ELSEWHERE = (
    "Endpoint, region and credentials do not belong into it: boto3 takes them from AWS_ENDPOINT_URL_S3, "
    "AWS_DEFAULT_REGION, AWS_PROFILE and the like."
)


@dataclass(frozen=True)
class S3Address:
    """A bucket, and the prefix under which the store's keys stand: empty, or parts joined by `/`.

    For messages: what it is the address of, and what its credentials must be allowed to do.
    """

    bucket: str
    prefix: str
    role: ClassVar[str] = "the store"
    permissions: ClassVar[str] = (
        "s3:ListBucket and s3:ListBucketMultipartUploads on the bucket, and s3:GetObject, s3:PutObject, "
        "s3:DeleteObject and s3:AbortMultipartUpload on the prefix"
    )

    @property
    def setting(self) -> str:
        """The setting that has it, for messages."""
        return "store"

    def __str__(self) -> str:
        return f"{SCHEME}://{self.bucket}/{self.prefix}".rstrip("/")

    def full_prefix(self, prefix: str) -> str:
        """What the bucket's keys begin with where the store's begin with `prefix`."""
        return f"{self.prefix}/{prefix}" if self.prefix else prefix

    def full_key(self, key: str) -> str:
        """The bucket's key of a store's key. Raises `ValueError` if it is none."""
        return self.full_prefix("/".join(split_key(key)))


@dataclass(frozen=True)
class SourceBucket(S3Address):
    """A bucket that is only read: its keys are what other programs made them, also where a store's could not be."""

    prefix: str = ""
    named_by: str = SOURCE_SETTING
    role: ClassVar[str] = "the source"
    permissions: ClassVar[str] = "s3:ListBucket on the bucket and s3:GetObject on its objects"

    @property
    def setting(self) -> str:
        """The setting that has it, for messages."""
        return self.named_by

    def full_key(self, key: str) -> str:
        """The key itself."""
        return key


def parse_source_address(text: str, setting: str = SOURCE_SETTING) -> tuple[SourceBucket, str]:
    """The bucket that a user typed, and what stands after it: a key, the beginning of keys, or a pattern of keys.

    `setting` is where it was typed. Raises `ConfigurationError`.
    """
    bucket, _, rest = text.removeprefix(f"{SCHEME}://").partition("/")
    if not BUCKET_PATTERN.fullmatch(bucket):
        raise ConfigurationError(
            f"{setting} = {without_secrets(text)!r} is not an address of the form s3://bucket/prefix/. {ELSEWHERE}"
        )
    return SourceBucket(bucket, named_by=setting), rest


def parse_s3_address(text: str) -> S3Address:
    """The address that a user typed. Raises `ConfigurationError`."""
    bucket, _, prefix = text.removeprefix(f"{SCHEME}://").partition("/")
    prefix = prefix.rstrip("/")
    if not BUCKET_PATTERN.fullmatch(bucket) or not _is_prefix(prefix):
        raise ConfigurationError(
            f"store = {without_secrets(text)!r} is not an address of the form s3://bucket/prefix. {ELSEWHERE}"
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
