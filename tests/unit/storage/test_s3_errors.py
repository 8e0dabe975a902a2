"""What S3's failures are taken for, what a person is told, and what an address may look like."""

import subprocess
import sys

import pytest
from botocore import exceptions as botocore_errors
from botocore.exceptions import ClientError

from storage.errors import (
    ConfigurationError,
    CorruptObjectError,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from storage.objects.s3.address import S3Address, SourceBucket, parse_s3_address
from storage.objects.s3.errors import explain, is_transient, says_existing

ADDRESS = S3Address("bucket", "some/prefix")


def answer(status: int, code: str) -> ClientError:
    """A server's answer, whose own text has something in it that is nobody's business."""
    error = {"Code": code, "Message": "the-secret"}
    return ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


MESSAGES: dict[tuple[int, str], str] = {
    (403, "AccessDenied"): "Access was refused: its credentials need s3:ListBucket",
    (403, "403"): "Cannot use the store s3://bucket/some/prefix at http://server: 403 (at key). Access was refused",
    (403, "InvalidAccessKeyId"): "The server does not accept the credentials",
    (403, "SignatureDoesNotMatch"): "The server does not accept the credentials",
    (400, "ExpiredToken"): "The server does not accept the credentials",
    (403, "RequestTimeTooSkewed"): "This machine's clock is wrong",
    (404, "NoSuchBucket"): "There is no bucket 'bucket' there. Make it, or check `store`",
    (301, "PermanentRedirect"): "set AWS_DEFAULT_REGION to it",
    (411, "MissingContentLength"): "AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
    (403, "QuotaExceeded"): "no space left",
    (418, "Teapot"): "418 Teapot (at key). Look this code up",
}


@pytest.mark.parametrize(("status", "code"), MESSAGES)
def test_an_answer_says_what_to_do_and_nothing_of_the_servers_own_text(status: int, code: str) -> None:
    message = str(explain(answer(status, code), ADDRESS, "key", "http://server"))
    assert MESSAGES[status, code] in message
    assert "the-secret" not in message


def test_a_source_is_told_by_its_own_name_and_what_it_needs() -> None:
    def told(status: int, code: str) -> str:
        return str(explain(answer(status, code), SourceBucket("bucket"), "some//key", "http://server"))

    refused = told(403, "AccessDenied")
    assert refused.startswith("Cannot use the source s3://bucket at http://server: 403 AccessDenied (at some//key).")
    assert "its credentials need s3:ListBucket on the bucket and s3:GetObject on its objects. Grant" in refused
    assert "check `data.source` and AWS_ENDPOINT_URL_S3" in told(404, "NoSuchBucket")


def test_what_is_missing_and_what_is_damaged_are_errors_of_their_own() -> None:
    error = explain(answer(404, "NoSuchKey"), ADDRESS, "key", "http://server")
    assert isinstance(error, ObjectMissingError)
    assert str(error) == "s3://bucket/some/prefix/key is missing."
    damage = botocore_errors.FlexibleChecksumError(error_msg="Expected checksum a did not match calculated checksum b")
    assert isinstance(explain(damage, ADDRESS, "key", "http://server"), CorruptObjectError)


@pytest.mark.parametrize("code", ["404", "", "NotFound", "unknown"])
def test_a_404_without_s3s_own_name_for_it_is_no_missing_object(code: str) -> None:
    error = explain(answer(404, code), ADDRESS, "key", "http://server")
    assert isinstance(error, StoreUnavailableError)
    assert "Something answers in the server's place" in str(error)


def test_a_provider_of_credentials_that_fails_is_not_quoted() -> None:
    failed = botocore_errors.CredentialRetrievalError(provider="custom-process", error_msg="the-secret")
    message = str(explain(failed, ADDRESS, "key", "http://server"))
    assert "No credentials for the store s3://bucket/some/prefix at http://server (CredentialRetrievalError)" in message
    assert isinstance(explain(failed, ADDRESS, "key", "http://server"), StoreRefusedError)
    assert "the-secret" not in message


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "409"])
def test_every_409_means_what_412_means(code: str) -> None:
    assert says_existing(answer(409, code)) and says_existing(answer(412, code))
    assert not is_transient(answer(409, code))


def test_what_may_be_better_next_time_is_asked_again_and_nothing_else() -> None:
    url = "http://server"
    for better in (
        answer(503, "SlowDown"),
        answer(500, "InternalError"),
        answer(400, "RequestTimeout"),
        answer(429, "TooManyRequests"),
        answer(404, "404"),
        botocore_errors.ReadTimeoutError(endpoint_url=url),
        botocore_errors.ConnectionClosedError(endpoint_url=url),
        botocore_errors.EndpointConnectionError(endpoint_url=url),
        botocore_errors.FlexibleChecksumError(error_msg=""),
    ):
        assert is_transient(better), better
    for same in (
        answer(403, "AccessDenied"),
        answer(404, "NoSuchBucket"),
        answer(501, "NotImplemented"),
        botocore_errors.NoCredentialsError(),
        botocore_errors.SSLError(endpoint_url=url, error="self-signed certificate"),
    ):
        assert not is_transient(same), same


@pytest.mark.parametrize(
    ("text", "address", "full_key"),
    [
        ("s3://bucket", "s3://bucket", "a/b"),
        ("s3://bucket/", "s3://bucket", "a/b"),
        ("s3://bucket.with.dots/some/prefix/", "s3://bucket.with.dots/some/prefix", "some/prefix/a/b"),
    ],
)
def test_an_address_is_a_bucket_and_a_prefix(text: str, address: str, full_key: str) -> None:
    parsed = parse_s3_address(text)
    assert (str(parsed), parsed.full_key("a/b")) == (address, full_key)


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3:///x", "s3://b", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket:9000/x"]
    + [f"s3://{mistake}" for mistake in ("key:secret@bucket/x", "bucket/x?token=secret")],
)
def test_an_address_has_nothing_else_in_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address of the form s3://bucket/prefix") as raised:
        parse_s3_address(text)
    assert "secret" not in str(raised.value)


def test_a_command_on_a_folder_does_not_import_boto3() -> None:
    code = "import sys; from storage.objects.addresses import open_store as o; o('x'); sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
