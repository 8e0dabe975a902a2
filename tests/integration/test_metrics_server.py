"""GET /metrics of a real run while it trains, as Prometheus reads it; of a run that is preempted also in
`test_preempted_runs.py`.
"""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.monitoring.figures import SegmentFigures
from tasks.monitoring.server import serving
from tests.helpers.commands import RUN_SECONDS, Runner, StartedCommand, kill_everything, wait_until
from tests.helpers.finished_runs import state_of
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import find_free_port
from tests.helpers.prometheus import scrape
from tests.helpers.tiny_runs import write_tiny_configuration

# Comes to its end in no test.
ENDLESS = 1_000_000


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "watched", tmp_path / "store", tmp_path / "data")
    return Runner(configuration, {"store": tmp_path / "store", "run": "watched"}, prefect_server)


@pytest.fixture
def port() -> int:
    return find_free_port()


@pytest.fixture
def endless(runner: Runner, port: int) -> Iterator[StartedCommand]:
    """A run in training, with its metrics on `port`, and a checkpoint now and then."""
    runner.prepare()
    settings = {"segment__metrics_port": port, "segment__metrics_host": "127.0.0.1"}
    process = runner.start(
        train__steps=ENDLESS, validation__every_steps=ENDLESS, checkpoint__every_steps=50, **settings
    )
    try:
        yield process
    finally:
        kill_everything(process)


@pytest.mark.slow
def test_a_run_in_training_is_scraped_from_its_segments_start_to_its_end(
    runner: Runner, port: int, endless: StartedCommand
) -> None:
    assert wait_until(lambda: bool(scrape(port)), endless), runner.log.read_text()
    assert wait_until(lambda: scrape(port).get("holdfast_promoted_step", 0) > 0, endless), runner.log.read_text()
    first = scrape(port)
    assert wait_until(lambda: scrape(port).get("holdfast_step", 0) > first["holdfast_step"] > 0, endless)
    assert wait_until(lambda: "holdfast_samples_per_second" in scrape(port), endless)
    found = scrape(port)
    assert found["holdfast_planned_steps"] == ENDLESS and found["holdfast_ranks"] == 1
    assert found["holdfast_loss"] > 0 and found["holdfast_tokens_per_second"] > 0
    assert 0 <= found["holdfast_input_wait_ratio"] <= 1
    assert found["holdfast_saves_total"] > 0 and found["holdfast_promotion_age_seconds"] >= 0
    assert not [name for name in found if not name.startswith("holdfast_")]  # nothing of this process besides

    endless.send_signal(signal.SIGTERM)
    assert endless.wait(RUN_SECONDS) == 128 + signal.SIGTERM
    assert scrape(port) == {}
    assert f"Metrics for Prometheus: http://127.0.0.1:{port}/metrics" in runner.log.read_text()


def test_when_a_segment_has_ended_nobody_answers_and_the_next_one_can_have_its_port(port: int) -> None:
    for num_steps in (100, 200):
        with serving(SegmentFigures("store", state_of("run", num_steps, []), num_steps), "127.0.0.1", port):
            assert scrape(port)["holdfast_planned_steps"] == num_steps
        assert scrape(port) == {}


def test_a_port_in_use_is_a_warning_and_what_follows_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gone_on = False
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with serving(SegmentFigures("store", state_of("run", 100, []), 100), "127.0.0.1", taken):
            gone_on = True
    assert gone_on
    (said,) = [record.message for record in caplog.records if record.name == "holdfast"]
    assert f"cannot be served on 127.0.0.1, port {taken}: Address already in use" in said


@pytest.mark.slow
def test_a_run_whose_port_is_in_use_goes_on_to_its_end(runner: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        result = runner.call("run", segment__metrics_port=taken, segment__metrics_host="127.0.0.1")
    assert result.returncode == 0, result.stderr
    assert f"cannot be served on 127.0.0.1, port {taken}: Address already in use" in result.stderr
    assert runner.status()["state"] == "completed"


@pytest.mark.slow
def test_an_address_that_this_machine_has_not_is_a_warning_too(runner: Runner, port: int) -> None:
    result = runner.call("run", segment__metrics_port=port, segment__metrics_host="no-such-host.invalid")
    assert result.returncode == 0, result.stderr
    assert f"cannot be served on no-such-host.invalid, port {port}" in result.stderr
    assert runner.status()["state"] == "completed"
