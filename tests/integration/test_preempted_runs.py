"""A real run that is told of the end of its machine: saved, promoted, told, and continued by the same command.

Between its beginning and the notice the run has no reason to save: what it goes on from, the notice has made it save.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.preemption.aws import ENDPOINT_VARIABLE
from tests.helpers.commands import COMMAND, ROOT, Runner, StartedCommand, kill_everything, wait_until
from tests.helpers.metadata_services import MetadataServices, running_metadata_services
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import find_free_port
from tests.helpers.prometheus import scrape
from tests.helpers.tiny_runs import write_tiny_configuration

# More than are made before the notice comes, also on a quick machine.
STEPS = 1_000_000
SEEN_STEP = 5
ASKED_TO_STOP = 128 + signal.SIGTERM


@dataclass
class Told:
    """A run that was told by one way, while it trained."""

    runner: Runner
    port: int
    scraped: dict[str, float]
    exit_code: int
    said: str
    state: RunState
    take_back: Callable[[], None]


@pytest.fixture(scope="module")
def services() -> Iterator[MetadataServices]:
    with running_metadata_services() as running:
        yield running


@pytest.fixture(
    scope="module", params=["aws", *(pytest.param(way, marks=pytest.mark.slow) for way in ("file", "SIGUSR1"))]
)
def told(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    prefect_server: dict[str, str],
    services: MetadataServices,
) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp(request.param)
    environment = prefect_server | {ENDPOINT_VARIABLE: services.endpoint}
    runner, port = make_runner(folder, request.param, environment), find_free_port()
    runner.prepare()
    process = runner.start(train__steps=STEPS, segment__metrics_port=port, segment__metrics_host="127.0.0.1")
    try:
        assert runner.wait_for_step(process, SEEN_STEP), runner.log.read_text()
        scraped: dict[str, float] = {}
        assert wait_until(lambda: has_scraped(port, scraped), process), runner.log.read_text()
        take_back = announce(request.param, folder, services, process)
        exit_code = process.wait(300)
    finally:
        kill_everything(process)
    yield Told(runner, port, scraped, exit_code, runner.log.read_text(), state_of(runner), take_back)


def has_scraped(port: int, scraped: dict[str, float]) -> bool:
    """Whether the run is on its way by its figures, which `scraped` gets: a report without a step has no loss."""
    found = scrape(port)
    scraped |= found
    return found.get("holdfast_step", 0) >= SEEN_STEP and "holdfast_loss" in found


def make_runner(folder: Path, kind: str, environment: dict[str, str]) -> Runner:
    write_parquet(folder / "data" / "part-0.parquet", text_columns(200))
    configuration = write_tiny_configuration(folder, "told", folder / "store", folder / "data")
    notices: dict[str, dict[str, object]] = {
        "file": {"notices__file": folder / "notice"},
        "aws": {"notices__clouds": '["aws"]'},
        "SIGUSR1": {},
    }
    settings = {
        "store": folder / "store",
        "run": "told",
        "checkpoint__every_steps": STEPS,
        "validation__every_steps": STEPS,
    }
    return Runner(configuration, {**settings, **notices[kind]}, environment)


def announce(kind: str, folder: Path, services: MetadataServices, process: StartedCommand) -> Callable[[], None]:
    """Announce the end in one way; what takes the notice back is returned."""
    if kind == "file":
        (folder / "notice").write_text("this node is drained at noon\n")
        return (folder / "notice").unlink
    if kind == "aws":
        services.interrupt_spot_instance()
        return services.aws.clear
    family = psutil.Process(process.pid)
    for member in [*family.children(recursive=True), family]:  # as a scheduler does that signals a whole job
        member.send_signal(signal.SIGUSR1)
    return lambda: None


def state_of(runner: Runner) -> RunState:
    return Manifest(LocalStore(Path(runner.settings["store"])), "told").load_head().state


def test_the_ranks_save_and_leave_and_not_a_step_is_lost(told: Told) -> None:
    (segment,) = told.state.segments
    assert (segment.outcome, segment.steps_lost) == ("preempted", 0), segment.cause
    assert told.state.promoted is not None
    assert told.state.promoted.step == segment.last_step >= SEEN_STEP
    assert told.state.lease is None


def test_it_is_told_who_announced_what_and_how_to_go_on(told: Told, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["told"]
    words = {
        "file": "notice is there and contains: this node is drained at noon. The ranks finish their step, save and "
        "leave.",
        "aws": "AWS announces for this Spot instance: terminate at ",
        "SIGUSR1": "SIGUSR1 came, by which a scheduler announces the end of a job. The ranks finish",
    }[kind]
    assert words in told.said
    assert "Stopped. A notice ended this segment: " in told.said
    assert f"The command: holdfast run {told.runner.configuration} --set " in told.said
    assert "Traceback" not in told.said
    assert told.exit_code == ASKED_TO_STOP


def test_while_it_trained_its_figures_were_there_for_prometheus(told: Told) -> None:
    found = told.scraped
    assert found["holdfast_planned_steps"] == STEPS and found["holdfast_ranks"] == 1
    assert found["holdfast_step"] >= SEEN_STEP and found["holdfast_loss"] > 0
    assert not [name for name in found if not name.startswith("holdfast_")]  # nothing of this process besides
    assert scrape(told.port) == {}
    assert f"Metrics for Prometheus: http://127.0.0.1:{told.port}/metrics" in told.said


@pytest.mark.slow
def test_the_same_command_goes_on_from_there_once_the_notice_is_gone(told: Told) -> None:
    assert told.state.promoted is not None
    told.take_back()
    steps = told.state.promoted.step + 3
    told.runner.run(train__steps=steps)
    after = state_of(told.runner)
    assert after.is_complete
    assert [(s.outcome, s.first_step, s.last_step) for s in after.segments[1:]] == [
        ("completed", told.state.promoted.step, steps)
    ]
    assert after.steps_lost == 0


def test_a_schedulers_signal_ends_the_command_in_good_order_before_anything_has_begun(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    runner = make_runner(tmp_path, "SIGUSR1", prefect_server)
    with subprocess.Popen(
        [*COMMAND, "run", str(runner.configuration)], env=prefect_server, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Reading the configuration ")
        process.send_signal(signal.SIGUSR2)
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGUSR2, said
    assert "Traceback" not in said
