"""Notices that a machine is taken away: what every source owes whoever looks, and what a watch makes of it.

The metadata services are HTTP servers that speak the clouds' paths, headers and payloads, and refuse as they do.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from storage.errors import RunStoppedError
from tasks.configuration.notices import NoticesConfig
from tasks.console.announce import warn
from tasks.preemption import metadata, watch
from tasks.preemption.aws import ENDPOINT_VARIABLE, AwsNotices
from tasks.preemption.azure import AzureNotices
from tasks.preemption.file import MAX_QUOTED_CHARACTERS, NoticeFile
from tasks.preemption.gcp import HOST_VARIABLE, GcpNotices
from tasks.preemption.notice import Notice, NoticeSource
from tasks.preemption.scheduler import SIGNALS
from tasks.preemption.signals import StopRequest
from tasks.preemption.sources import open_sources
from tasks.preemption.watch import run_to_end_or_notice, watching
from tests.helpers.commands import wait_until
from tests.helpers.metadata_services import AWS, AZURE, GCP, MetadataServices, running_metadata_services

pytestmark = pytest.mark.server

# A watch looks every two seconds; here nobody waits that long.
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
NOTHING_WATCHED = NoticesConfig()


@dataclass(frozen=True)
class Announcer:
    """One source, and how it comes to announce something and to be away."""

    config: NoticesConfig
    announce: Callable[[], None]
    go_away: Callable[[], None]
    come_back: Callable[[], None]
    words: str
    seconds_left: float | None

    def open(self) -> NoticeSource:
        (source,) = open_sources(self.config)
        return source


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServices]:
    with running_metadata_services() as running:
        monkeypatch.setenv(ENDPOINT_VARIABLE, running.endpoint)
        monkeypatch.setenv(HOST_VARIABLE, f"127.0.0.1:{running.port}")
        yield running


@pytest.fixture(params=["file", "aws", "gcp", "azure"])
def announcer(request: pytest.FixtureRequest, services: MetadataServices, tmp_path: Path) -> Announcer:
    return make_announcer(request.param, services, tmp_path / "notice")


def make_announcer(kind: str, services: MetadataServices, file: Path) -> Announcer:
    def garble(is_garbled: bool) -> None:
        services.garbled = is_garbled

    def write() -> None:
        written = file.with_name("notice being written")
        written.write_text("maintenance of rack 7\na second line, which is not shown\n")
        written.replace(file)  # a look between creation and writing would find an empty file

    if kind == "file":
        words = f"The notice file {file} is there and contains: maintenance of rack 7"
        return Announcer(NoticesConfig(file=str(file)), write, file.mkdir, file.rmdir, words, None)
    announce = {
        "aws": services.interrupt_spot_instance,
        "gcp": services.preempt,
        "azure": lambda: services.schedule("Preempt"),
    }[kind]
    words = {
        "aws": "AWS announces for this Spot instance: terminate at 20",
        "gcp": "Google Compute Engine preempts this machine",
        "azure": "Azure announces for this machine: Preempt, not before ",
    }[kind]
    config = NoticesConfig.model_validate({"clouds": [kind], "azure_endpoint": services.endpoint})
    seconds = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}[kind]
    return Announcer(config, announce, lambda: garble(True), lambda: garble(False), words, seconds)


def azure_of(services: MetadataServices) -> AzureNotices:
    return AzureNotices(services.endpoint)


def test_where_nothing_is_announced_there_is_no_notice(announcer: Announcer) -> None:
    source = announcer.open()
    assert [source.look() for _ in range(3)] == [None] * 3


def test_a_notice_says_who_announces_what_and_how_long_is_left_for_as_long_as_it_stands(announcer: Announcer) -> None:
    source = announcer.open()
    assert source.look() is None
    announcer.announce()
    first, second = source.look(), source.look()
    assert first is not None and second is not None
    assert first.words == second.words and first.words.startswith(announcer.words)
    assert first.ends_machine
    assert source.least_seconds == announcer.seconds_left
    if announcer.seconds_left is None:
        assert first.seconds_left is None
    else:  # times are announced in whole seconds
        assert first.seconds_left is not None
        assert announcer.seconds_left - PATIENCE_SECONDS < first.seconds_left <= announcer.seconds_left


def test_a_source_that_cannot_be_read_says_so_and_is_read_again_later(announcer: Announcer) -> None:
    source = announcer.open()
    announcer.go_away()
    with pytest.raises((OSError, ValueError), match=r"\w"):
        source.look()
    announcer.come_back()
    assert source.look() is None
    announcer.announce()
    assert source.look() is not None


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_a_service_that_is_gone_or_hangs_is_an_error_and_asked_again_later(
    kind: str, services: MetadataServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ANSWER_SECONDS", 0.2)
    announcer = make_announcer(kind, services, tmp_path)
    source = announcer.open()
    services.may_answer.clear()
    with pytest.raises(TimeoutError, match="did not answer"):
        source.look()
    services.close()
    with pytest.raises(ConnectionError, match="no answer from http://127"):
        source.look()
    monkeypatch.setattr(metadata, "ANSWER_SECONDS", PATIENCE_SECONDS)
    with running_metadata_services(services.port) as again:
        source = make_announcer(kind, again, tmp_path).open()
        assert source.look() is None


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_a_proxy_of_the_environment_is_not_asked(
    kind: str, services: MetadataServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert make_announcer(kind, services, tmp_path).open().look() is None


def test_the_services_refuse_whoever_does_not_ask_as_documented(services: MetadataServices) -> None:
    """The servers of these tests are no easier to talk to than the real ones."""
    services.preempt()
    with httpx.Client(base_url=services.endpoint, trust_env=False) as client:
        codes = [
            client.get(f"{AWS}/spot/instance-action").status_code,
            client.get(f"{AWS}/spot/instance-action", headers={"X-aws-ec2-metadata-token": "forged"}).status_code,
            client.put("/latest/api/token").status_code,
            client.get(f"{GCP}/preempted").status_code,
            client.get(f"{AZURE}/scheduledevents?api-version=2020-07-01").status_code,
            client.get(f"{AZURE}/scheduledevents", headers={"Metadata": "true"}).status_code,
        ]
    assert codes == [401, 401, 400, 403, 400, 400]


def test_a_session_of_aws_is_kept_and_renewed_when_its_token_is_not_taken_any_more(services: MetadataServices) -> None:
    source = AwsNotices()
    for _ in range(3):
        assert source.look() is None
    assert services.num_tokens_given == 1
    services.tokens.clear()  # six hours later
    services.interrupt_spot_instance()
    assert source.look() is not None
    assert services.num_tokens_given == 2


def test_a_rebalance_recommendation_is_advice_and_an_interruption_counts_before_it(services: MetadataServices) -> None:
    source = AwsNotices()
    services.recommend_rebalance()
    advice = source.look()
    assert advice is not None and not advice.ends_machine and "more likely" in advice.words
    services.interrupt_spot_instance(action="stop")
    notice = source.look()
    assert notice is not None and notice.ends_machine and "Spot instance: stop at" in notice.words


def test_an_interruption_whose_time_has_come_leaves_no_time(services: MetadataServices) -> None:
    services.interrupt_spot_instance(seconds=-5, action="hibernate")
    notice = AwsNotices().look()
    assert notice is not None and notice.seconds_left == 0


def test_maintenance_by_live_migration_ends_nothing_and_one_that_stops_the_machine_does(
    services: MetadataServices,
) -> None:
    source = GcpNotices()
    services.maintain("MIGRATE_ON_HOST_MAINTENANCE")
    assert source.look() is None
    services.maintain("TERMINATE_ON_HOST_MAINTENANCE")
    notice = source.look()
    assert notice is not None and notice.ends_machine and "for maintenance" in notice.words


def test_of_azures_events_only_those_count_that_end_this_machine(services: MetadataServices) -> None:
    source = azure_of(services)
    services.schedule("Preempt", "worker_1", "worker_2")
    services.schedule("Freeze")
    services.schedule("SomethingOfNextYear")
    assert source.look() is None
    services.schedule("Reboot", "worker_1", "WORKER_3", seconds=900)
    notice = source.look()
    assert notice is not None and "this machine: Reboot, not before " in notice.words


def test_of_several_events_of_azure_the_next_one_is_told(services: MetadataServices) -> None:
    services.schedule("Redeploy", seconds=600)
    services.schedule("Terminate", seconds=300)
    notice = azure_of(services).look()
    assert notice is not None and "Terminate" in notice.words
    services.schedule("Preempt", seconds=None)
    notice = azure_of(services).look()
    assert notice is not None and notice.words.endswith("Preempt, it has begun") and notice.seconds_left == 0


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        (b"", ""),
        (b"\nsecond\n", ""),
        ("\u00e4 notice\r\n".encode(), " and contains: \u00e4 notice"),
        (b"\x1b[31mred\xff\n", " and contains: \ufffd[31mred\ufffd"),
        (b"x" * 10_000, " and contains: " + "x" * (MAX_QUOTED_CHARACTERS - 1) + "\u2026"),
    ],
)
def test_of_a_file_the_first_line_is_quoted_whatever_is_in_it(content: bytes, quoted: str, tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_bytes(content)
    assert NoticeFile(path).look() == Notice(f"The notice file {path} is there{quoted}")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "holdfast"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", LOOK_SECONDS)


@pytest.mark.usefixtures("often")
def test_a_notice_is_told_and_asks_to_stop_once(announcer: Announcer, caplog: pytest.LogCaptureFixture) -> None:
    request = StopRequest()
    with watching([announcer.open()], request, warn):
        announcer.announce()
        wait_until(lambda: request.is_made and bool(warnings_of(caplog)))
    (error,) = request.exceptions
    assert isinstance(error, RunStoppedError) and announcer.words in str(error)
    (said,) = warnings_of(caplog)
    assert said.startswith(announcer.words) and said.endswith("The ranks finish their step, save and leave.")
    assert ("are left." in said) == (announcer.seconds_left is not None)


@pytest.mark.usefixtures("often")
def test_advice_is_told_once_and_asks_for_nothing(services: MetadataServices, caplog: pytest.LogCaptureFixture) -> None:
    looks: list[int] = []

    class Counted(AwsNotices):
        def look(self) -> Notice | None:
            notice = super().look()
            looks.append(1)
            return notice

    request = StopRequest()
    services.recommend_rebalance()
    with watching([Counted()], request, warn):
        wait_until(lambda: len(looks) >= 4)
    (said,) = warnings_of(caplog)
    assert "rebalance recommendation" in said and said.endswith("Training goes on.")
    assert not request.is_made


@pytest.mark.usefixtures("often")
def test_what_is_days_ahead_is_told_once_and_obeyed_when_it_comes_near(
    services: MetadataServices, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    class Counted(AzureNotices):
        def look(self) -> Notice | None:
            looks.append(1)
            return super().look()

    request = StopRequest()
    services.schedule("Redeploy", seconds=3 * 86_400)
    with watching([Counted(services.endpoint)], request, warn):
        wait_until(lambda: len(looks) >= 4)
        assert not request.is_made
        services.schedule("Redeploy", seconds=299)
        wait_until(lambda: request.is_made and len(warnings_of(caplog)) > 1)
    early, near = warnings_of(caplog)
    assert "Redeploy" in early and early.endswith("Training goes on until 5 minutes are left.")
    assert "Redeploy" in near and near.endswith("save and leave.")


@pytest.mark.usefixtures("often")
def test_a_source_that_cannot_be_read_is_told_once_and_obeyed_when_it_can(
    announcer: Announcer, caplog: pytest.LogCaptureFixture
) -> None:
    source, request = announcer.open(), StopRequest()
    announcer.go_away()
    with watching([source], request, warn):
        wait_until(lambda: bool(warnings_of(caplog)))
        announcer.come_back()
        announcer.announce()
        wait_until(lambda: request.is_made and len(warnings_of(caplog)) > 1)
    silent, told = warnings_of(caplog)
    assert silent.startswith(f"{source.name} cannot be read: ") and silent.endswith("Training goes on.")
    assert told.startswith(announcer.words)


def test_nobody_waits_for_a_service_that_hangs(
    services: MetadataServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "ANSWER_SECONDS", 600.0)  # longer than this test may take
    services.may_answer.clear()
    file, request = make_announcer("file", services, tmp_path / "notice"), StopRequest()
    monkeypatch.setattr(watch, "LOOK_SECONDS", LOOK_SECONDS)
    with watching([AwsNotices(), file.open()], request, warn):
        assert services.is_asked.wait(PATIENCE_SECONDS)
        file.announce()
        wait_until(lambda: request.is_made)
    assert not services.may_answer.is_set()
    assert [said for said in warnings_of(caplog) if "AWS" in said] == []


def own_handler(number: int, _frame: object) -> None:
    """Of whoever heard them before, as `holdfast run` does from its start on."""
    raise AssertionError(f"signal {number} came to somebody else than the segment")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_schedulers_signal_lets_the_work_end_and_is_raised_then(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    before = [signal.signal(one, own_handler) for one in SIGNALS]
    ended: list[str] = []

    def work(request: StopRequest) -> None:
        os.kill(os.getpid(), number)
        wait_until(lambda: request.is_made)
        for other in SIGNALS:  # again, while it saves
            os.kill(os.getpid(), other)
        ended.append("saved")

    try:
        with pytest.raises(RunStoppedError, match=f"{number.name} came, by which a scheduler"):
            run_to_end_or_notice(NOTHING_WATCHED, warn, work)
        assert [signal.getsignal(one) for one in SIGNALS] == [own_handler] * 2
    finally:
        for one, handler in zip(SIGNALS, before, strict=True):
            signal.signal(one, handler)
    assert ended == ["saved"]
    (said,) = warnings_of(caplog)
    assert said.startswith(f"{number.name} came") and "save and leave" in said


def test_a_signal_that_comes_as_the_last_rank_leaves_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 600.0)  # nobody looks while the work is under way
    with pytest.raises(RunStoppedError, match="SIGUSR2 came"):
        run_to_end_or_notice(NOTHING_WATCHED, warn, lambda _request: os.kill(os.getpid(), signal.SIGUSR2))


def test_work_of_another_thread_than_the_main_one_is_done_without_hearing_signals() -> None:
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(run_to_end_or_notice(NOTHING_WATCHED, warn, lambda _request: 7))
    )
    thread.start()
    thread.join()
    assert results == [7]


def test_a_notice_that_stands_already_is_raised_when_the_work_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text("moved to another zone\n")

    def work(request: StopRequest) -> None:
        wait_until(lambda: request.is_made)

    with pytest.raises(RunStoppedError, match="moved to another zone"):
        run_to_end_or_notice(NoticesConfig(file=str(path)), warn, work)


def test_nobody_is_asked_who_is_not_named() -> None:
    assert open_sources(NoticesConfig()) == []
