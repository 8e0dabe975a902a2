"""Meaning of S3's failures: whether to ask again, and the message for a person.

Invariant: no message has more of a failure in it than its code, its class and the key: what servers and credential
providers write into their own texts is theirs to know.
"""

from typing import Any

import urllib3.exceptions
from botocore import exceptions as botocore_errors
from botocore.exceptions import BotoCoreError, ClientError

from storage.errors import (
    CorruptObjectError,
    HoldfastError,
    ObjectMissingError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from storage.objects.s3.address import S3Address, SourceBucket

# Everything that a request can fail with; of what a body's stream raises, boto3 translates a part only.
S3_FAILURES = (ClientError, BotoCoreError, urllib3.exceptions.HTTPError)
NETWORK_ERRORS = (
    botocore_errors.ConnectionError,
    botocore_errors.HTTPClientError,
    botocore_errors.IncompleteReadError,
    urllib3.exceptions.HTTPError,
)
CREDENTIAL_ERRORS = (
    botocore_errors.NoCredentialsError,
    botocore_errors.PartialCredentialsError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.UnknownCredentialError,
    botocore_errors.NoAuthTokenError,
    botocore_errors.TokenRetrievalError,
    botocore_errors.SSOError,
    botocore_errors.LoginError,
)
TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
TRANSIENT_CODES = {"RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException"}
EXISTING_STATUS = {409, 412}
# What boto3 makes of a 404 whose body is none of S3's: empty, a page, or of another service.
NAMELESS_CODES = {"404", "", "unknown", "NotFound", "Not Found"}

ACCESS_REFUSED = {"AccessDenied", "403"}
CREDENTIAL_ADVICE = (
    "Give boto3 credentials in one of its ordinary ways: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
    "a role of the machine. Then run again."
)
CHECKSUM_ADVICE = (
    "An older server may not know the checksums that boto3 sends by default: set "
    "AWS_REQUEST_CHECKSUM_CALCULATION=when_required and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required."
)
REGION_ADVICE = "The bucket is in another region, or the server expects another one: set AWS_DEFAULT_REGION to it."
_CREDENTIALS_REFUSED = f"The server does not accept the credentials. {CREDENTIAL_ADVICE}"
_FULL = "The server has no space left for this bucket or user. Make room, then run again."
REFUSING_STATUS = {401, 403}
ADVICE = {
    "InvalidAccessKeyId": _CREDENTIALS_REFUSED,
    "SignatureDoesNotMatch": _CREDENTIALS_REFUSED,
    "InvalidToken": _CREDENTIALS_REFUSED,
    "ExpiredToken": _CREDENTIALS_REFUSED,
    "TokenRefreshRequired": _CREDENTIALS_REFUSED,
    "RequestTimeTooSkewed": "This machine's clock is wrong by more than the server allows. Set it, then run again.",
    "PermanentRedirect": REGION_ADVICE,
    "301": REGION_ADVICE,
    "AuthorizationHeaderMalformed": REGION_ADVICE,
    "QuotaExceeded": _FULL,
    "InsufficientCapacity": _FULL,
    "XMinioStorageFull": _FULL,
    "NoSuchUpload": "The upload was aborted while it was under way. Run again.",
    "MissingContentLength": CHECKSUM_ADVICE,
    "NotImplemented": CHECKSUM_ADVICE,
    "XAmzContentSHA256Mismatch": CHECKSUM_ADVICE,
}


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed when it is made again."""
    if isinstance(error, ClientError):
        is_passing = status_of(error) in TRANSIENT_STATUS or code_of(error) in TRANSIENT_CODES
        return is_passing or is_without_name(error)
    if isinstance(error, (botocore_errors.SSLError, urllib3.exceptions.SSLError)):
        return False  # a certificate does not become valid by asking again
    return isinstance(error, (*NETWORK_ERRORS, botocore_errors.FlexibleChecksumError))


def says_refused(error: Exception) -> bool:
    """Whether who asks is not known to the server, or may not do this; of a token that is over it says 400."""
    if not isinstance(error, ClientError):
        return False
    advice = ADVICE.get(code_of(error))
    return advice == _CREDENTIALS_REFUSED or (status_of(error) in REFUSING_STATUS and advice != _FULL)


def says_existing(error: Exception) -> bool:
    """Whether a conditional put was refused. Of the servers' many names for a race all have one of these numbers."""
    return isinstance(error, ClientError) and status_of(error) in EXISTING_STATUS


def says_missing(error: Exception) -> bool:
    """Whether the server itself reports that there is no object: a proxy in its place answers 404 without S3's name."""
    return isinstance(error, ClientError) and code_of(error) == "NoSuchKey"


def is_without_name(error: Exception) -> bool:
    """Whether it is a 404 without the missing name: of a proxy, or the answer to a HEAD, which has no body."""
    return isinstance(error, ClientError) and status_of(error) == 404 and code_of(error) in NAMELESS_CODES


def says_beyond_end(error: Exception) -> bool:
    """Whether an object has no byte where one was asked for: it is shorter than it was."""
    return isinstance(error, ClientError) and status_of(error) == 416


def says_upload_is_over(error: Exception) -> bool:
    """Whether a multipart upload is not under way any more: completed or aborted."""
    return isinstance(error, ClientError) and code_of(error) == "NoSuchUpload"


def explain(error: Exception, address: S3Address, key: str, endpoint: str) -> HoldfastError:
    """The error to raise in place of S3's own. `key` is the store's key, or a prefix."""
    if says_missing(error):
        return ObjectMissingError(f"{address}/{key} is missing.")
    where = f"{address.role} {address} at {endpoint}"
    if isinstance(error, CREDENTIAL_ERRORS):
        return _refusal(error, address, f"No credentials for {where} ({brief(error)}). {CREDENTIAL_ADVICE}")
    if isinstance(error, botocore_errors.FlexibleChecksumError):
        return CorruptObjectError(f"{address}/{key} does not have the checksum that the server states for it.")
    if isinstance(error, NETWORK_ERRORS):
        # The library's error for a connection that could not be made does not distinguish a server that is down from a
        # wrong address: on the first use of the store it is taken for a mistake, later it is not.
        return (StoreUnavailableError if is_transient(error) else StoreError)(
            f"Cannot reach {where} ({brief(error)}). "
            "Check AWS_ENDPOINT_URL_S3, the network and that the server runs, then run again."
        )
    message = f"Cannot use {where}: {brief(error)} (at {key or 'its top'}). {_advice(error, address)}"
    if says_refused(error):
        return _refusal(error, address, message)
    return (StoreUnavailableError if is_transient(error) else StoreError)(message)


def _refusal(error: Exception, address: S3Address, message: str) -> StoreError:
    """A store is waited for. A source is read when a run begins: there a wrong key is said at once."""
    if not isinstance(address, SourceBucket):
        return StoreRefusedError(message)
    # A service that gives credentials may not answer just now; that there are none does not pass.
    is_passing = isinstance(error, botocore_errors.CredentialRetrievalError)
    return (StoreUnavailableError if is_passing else StoreError)(message)


def brief(error: Exception) -> str:
    """A failure in a few words: number and code of an answer, or the class of what went wrong without one."""
    if isinstance(error, ClientError):
        status, code = status_of(error), code_of(error)
        return code if code == str(status) else f"{status} {code}"
    return type(error).__name__


def status_of(error: ClientError) -> int:
    """The HTTP status of an answer; 0 if it is not known."""
    response: Any = error.response
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    """S3's name for what went wrong."""
    response: Any = error.response
    return str(response.get("Error", {}).get("Code", "unknown"))


def _advice(error: Exception, address: S3Address) -> str:
    code = code_of(error) if isinstance(error, ClientError) else ""
    if code == "NoSuchBucket":
        there_is = f"There is no bucket {address.bucket!r} there."
        return f"{there_is} Make it, or check `{address.setting}` and AWS_ENDPOINT_URL_S3."
    if code in ACCESS_REFUSED:
        return f"Access was refused: its credentials need {address.permissions}. Grant them, then run again."
    if is_without_name(error):
        return "Something answers in the server's place: check AWS_ENDPOINT_URL_S3 and the proxies on the way to it."
    if is_transient(error):
        return "The server is overloaded or fails inside: see its own log if this goes on, then run again."
    return ADVICE.get(code, "Look this code up in the server's documentation, correct the cause, then run again.")
