"""How long an operation waits for a store that does not answer, and for what it does not wait."""

import errno
from pathlib import Path

import pytest
from botocore import exceptions as botocore_errors

from storage.errors import HoldfastError, StoreError, StoreRefusedError, StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.objects.s3.address import S3Address, SourceBucket
from storage.objects.s3.errors import explain
from tasks import retrying
from tasks.configuration.run import RetryConfig
from tasks.retrying import BACKOFF, Retry
from tests.unit.storage.test_s3_errors import answer

CONFIG = RetryConfig(store_seconds=100)


class Clock:
    """A clock that moves when the module under test sleeps. Other threads of the process keep the real one."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retrying, "time", made)
    return made


class Operation:
    """Fails so many times."""

    def __init__(self, failures: int, error: HoldfastError | None = None) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error or StoreUnavailableError("Cannot reach the store.")

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "done"


def test_an_operation_is_made_again_until_the_store_answers(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    operation = Operation(failures=3)
    assert Retry(CONFIG).call("Settling", operation) == "done"
    assert operation.calls == 4
    num_attempts = BACKOFF.count_pauses(100) + 1
    said = [record.getMessage() for record in caplog.records]
    assert [message.partition(" failed")[0] for message in said] == [
        f"Settling: attempt {number} of {num_attempts}" for number in (1, 2, 3)
    ]
    assert 3.5 <= clock.now <= 7  # 1, 2 and 4 seconds, each at least half as long


def test_it_is_given_up_when_the_time_is_over_and_the_last_error_is_raised(clock: Clock) -> None:
    operation = Operation(failures=10**6)
    with pytest.raises(StoreUnavailableError, match="Cannot reach the store"):
        Retry(CONFIG).call("Settling", operation)
    assert 50 <= clock.now <= 100 + BACKOFF.limit_seconds
    assert operation.calls > BACKOFF.count_pauses(100)


def test_what_a_person_has_to_put_right_is_raised_at_once(clock: Clock) -> None:
    operation = Operation(1, StoreError("There is no bucket."))
    with pytest.raises(StoreError, match="no bucket"):
        Retry(CONFIG).call("Settling", operation)
    assert (operation.calls, clock.now) == (1, 0.0)


def test_zero_seconds_are_one_attempt(clock: Clock) -> None:
    operation = Operation(failures=1)
    with pytest.raises(StoreUnavailableError):
        Retry(RetryConfig(store_seconds=0)).call("Settling", operation)
    assert (operation.calls, clock.now) == (1, 0.0)


def test_who_is_asked_to_stop_waits_no_longer(clock: Clock) -> None:
    operation = Operation(failures=10**6)
    with pytest.raises(StoreUnavailableError):
        Retry(CONFIG, lambda: clock.now > 1.5).call("Settling", operation)
    assert clock.now < 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
def test_a_network_file_system_that_is_away_is_waited_for(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write("a", b"1")

    def fail(*_arguments: object) -> bytes:
        raise OSError(number, "told to fail")

    monkeypatch.setattr("storage.objects.local_store.os.fsync", fail)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(StoreUnavailableError):
        store.write("b", b"2")
    with pytest.raises(StoreUnavailableError):
        store.read("a")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_folder_that_refuses_is_waited_for_as_where_a_ticket_has_run_out(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(number, "told to fail")

    monkeypatch.setattr("storage.objects.local_store.os.fsync", fail)
    with pytest.raises(StoreRefusedError):
        LocalStore(tmp_path).write("b", b"2")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_is_full_or_cannot_be_written_is_a_persons_matter(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(number, "told to fail")

    monkeypatch.setattr("storage.objects.local_store.os.fsync", fail)
    with pytest.raises(StoreError) as raised:
        LocalStore(tmp_path).write("b", b"2")
    assert not isinstance(raised.value, StoreUnavailableError)


def test_of_a_servers_failures_those_that_pass_are_waited_for() -> None:
    url, address = "http://server", S3Address("bucket", "prefix")
    passing = (
        answer(503, "SlowDown"),
        answer(500, "InternalError"),
        answer(429, "TooManyRequests"),
        botocore_errors.ReadTimeoutError(endpoint_url=url),
        botocore_errors.EndpointConnectionError(endpoint_url=url),
    )
    refusing = (
        answer(403, "AccessDenied"),
        answer(403, "UserSuspended"),
        answer(403, "RequestTimeTooSkewed"),
        answer(401, "Unauthorized"),
        answer(400, "ExpiredToken"),
        botocore_errors.NoCredentialsError(),
        botocore_errors.CredentialRetrievalError(provider="role", error_msg="no answer"),
    )
    staying = (
        answer(403, "QuotaExceeded"),
        answer(404, "NoSuchBucket"),
        botocore_errors.SSLError(endpoint_url=url, error="self-signed certificate"),
    )
    for error in passing:
        assert isinstance(explain(error, address, "key", url), StoreUnavailableError), error
    for error in refusing:
        assert isinstance(explain(error, address, "key", url), StoreRefusedError), error
    for error in refusing[:-1]:  # of a source it is a mistake that a person who begins a run is to know at once
        assert not isinstance(explain(error, SourceBucket("bucket", "prefix"), "key", url), StoreUnavailableError)
    for error in staying:
        assert not isinstance(explain(error, address, "key", url), StoreUnavailableError), error
