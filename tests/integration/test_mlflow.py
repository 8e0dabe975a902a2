"""Runs that tell a real MLflow server of themselves: killed, rolled back, with the server away, or never answering."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.config.load import load_configuration
from tasks.configuration.tracking import TrackingConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.pipeline import prepare_dataset
from tasks.tracking.mlflow_server import MlflowServer
from tasks.tracking.sending import Sender
from tests.helpers.commands import ROOT, Runner, kill_everything, wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.mlflow_server import (
    TrackedCurves,
    find_environment,
    make_environment,
    read_curves,
    running_mlflow,
)
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import find_free_port
from tests.helpers.silent_servers import running_silent_server
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.tracked_story import RESUME_STEP, SECOND, STORY, points_up_to
from training.data.order import SampleOrder

pytestmark = pytest.mark.server

BATCH_SIZE, STEPS = 16, 60
# As in `faults/test_divergence.py`: the sample at this place of the order goes into step 41, counted from 1.
POISONED_POSITION, DIVERGED_STEP, ROLLBACK_STEPS = 40 * BATCH_SIZE + 3, 41, 12
SETTINGS = {
    "train__steps": STEPS,
    "train__batch_size": BATCH_SIZE,
    "train__ranks": 1,
    "train__log_every_steps": 5,
    "model__width": 32,
    "model__layers": 1,
    "data__vocabulary_size": 600,
    "data__max_tokens": 64,
    "checkpoint__every_steps": 5,
    "validation__every_steps": 20,
    "divergence__rollback_steps": ROLLBACK_STEPS,
    "retry__delay_seconds": 0.1,
    "tracking__kind": "mlflow",
    "tracking__files": '["csv", "tensorboard"]',
}
# Steps at which runs are killed: before the rollback, twice, and after it.
KILLED_AT = (12, 27, 45)
# What follows from the steps alone; the rest was measured.
FROM_STEPS = re.compile(r"loss|learning_rate|gradient_norm|validation/.*|test/.*")

Track = Callable[..., tuple[Runner, TrackedCurves]]


@pytest.fixture(scope="module")
def environment() -> Path:
    """MLflow's; whoever asks for it is skipped where it was not installed: the slow tests do that."""
    found = find_environment()
    if found is None:
        pytest.skip("MLflow has no environment on this machine; `make slow` makes one")
    return found


@pytest.fixture
def address(environment: Path, tmp_path: Path) -> Iterator[str]:
    with running_mlflow(environment, tmp_path / "mlflow") as address:
        yield address


def test_a_real_server_has_each_step_once_whatever_is_sent_again(address: str) -> None:
    """The story of `unit/tasks/tracking/test_tracking_sending.py`, each chapter told by two processes at once."""
    config = TrackingConfig(kind="mlflow", uri=address, timeout_seconds=60)
    for chapter in STORY:
        first, second = Sender(MlflowServer(config)), Sender(MlflowServer(config))
        for sender in (first, second, first):
            sender.send(chapter)
    (live,) = read_curves(address)
    assert live.values("loss") == {p.step: p.value for p in points_up_to(40, SECOND, RESUME_STEP) if p.key == "loss"}
    assert live.parameters == {"train.steps": "100", "train.seed": "0"}
    assert live.info["status"] == "FINISHED" and live.info["run_name"] == "run"
    (old,) = read_curves(address, view="DELETED_ONLY")
    assert old.tags["holdfast.replaced_by"] == live.info["run_id"]
    assert read_file(address, live, "model.json") == b"{}"


def read_file(address: str, run: TrackedCurves, name: str) -> bytes:
    """One of its files, as MLflow's pages get it."""
    asked = {"run_uuid": run.info["run_id"], "path": name}
    return httpx.get(f"{address}/get-artifact", params=asked, timeout=60, trust_env=False).content


def test_a_run_beside_a_tracker_that_never_answers_ends_as_without_one_and_says_so_once(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    configuration = write_tiny_configuration(tmp_path, "tracked", tmp_path / "store", tmp_path / "data")
    runner = Runner(configuration, {"store": tmp_path / "store", "run": "tracked"}, prefect_server)
    runner.prepare()
    with running_silent_server() as server:
        tracked = {"tracking__kind": "mlflow", "tracking__uri": server.address, "tracking__timeout_seconds": 1}
        result = runner.call("run", **tracked, tracking__files='["csv"]')
        assert result.returncode == 0, result.stdout + result.stderr
        assert server.connections
    assert result.stderr.count("does not answer") == 1, result.stderr
    assert "Traceback" not in result.stderr
    status = runner.status()
    assert status["state"] == "completed"
    written = (tmp_path / "store/runs/tracked/metrics.csv").read_text().splitlines()
    assert {"step", "validation/loss", "test/loss"} <= set(written[0].split(","))
    assert [line.split(",")[0] for line in written[1:]][-1] == "4"


@pytest.mark.slow
def test_training_beside_a_tracker_that_hangs_is_as_fast_as_without_one(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    """By turns, with a promotion every few steps; the better one of two, since machines do other things too."""
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(120))
    speeds: dict[str, list[float]] = {"without": [], "hanging": []}
    with running_silent_server() as server:
        hanging = {"tracking__kind": "mlflow", "tracking__uri": server.address, "tracking__timeout_seconds": 1}
        for number in range(2):
            for name, tracked in (("without", {}), ("hanging", hanging)):
                run = f"{name}-{number}"
                configuration = write_tiny_configuration(tmp_path, run, tmp_path / "store", tmp_path / "data")
                runner = Runner(configuration, {"store": tmp_path / "store", "run": run}, prefect_server)
                runner.run(train__steps=400, checkpoint__every_steps=10, **tracked)
                (segment,) = head_of(runner).segments
                assert segment.throughput is not None
                speeds[name].append(segment.throughput.samples_per_second)
        assert server.connections
    print(speeds)
    assert max(speeds["hanging"]) > 0.7 * max(speeds["without"]), speeds


class Story:
    """Runs on one corpus, with a poisoned sample, beside one server that can be stopped and started again."""

    def __init__(self, folder: Path, prefect: dict[str, str]) -> None:
        self.folder = folder
        self.environment = make_environment()
        self.port = find_free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._prefect = prefect
        generate_corpus(folder / "policy", "policy", 2500)
        self.poison = FaultPlan().nan(self._row_at(POISONED_POSITION))

    def runner(self, run: str) -> Runner:
        settings = {
            "data__source": self.folder / "policy",
            "store": self.folder / f"store-{run}",
            "run": run,
            "tracking__uri": self.address,
            "tracking__experiment": run,
            **SETTINGS,
        }
        return Runner(ROOT / "deployments/configs/demo.toml", settings, self._prefect)

    def serving(self) -> Any:
        """The server, with what it was told before."""
        return running_mlflow(self.environment, self.folder / "mlflow", self.port)

    def curves(self, run: str) -> TrackedCurves:
        """The one live run."""
        (live,) = read_curves(self.address, run)
        return live

    def _row_at(self, position: int) -> int:
        settings = self.runner("unused").settings
        assignments = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
        config = load_configuration(ROOT / "deployments/configs/demo.toml", assignments)
        dataset = prepare_dataset(config.data, LocalStore(self.folder / "rows"), self.folder / "scratch")
        order = SampleOrder(dataset.splits["train"].num_rows, dataset.row_group_rows, config.train.seed)
        return int(order.rows(position, 1)[0])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, prefect_server: dict[str, str]) -> Story:
    return Story(tmp_path_factory.mktemp("mlflow"), prefect_server)


@pytest.fixture(scope="module")
def undisturbed(story: Story, tmp_path_factory: pytest.TempPathFactory) -> TrackedCurves:
    """The run that met the poisoned sample, and that nobody killed."""
    runner, plan = story.runner("undisturbed"), tmp_path_factory.mktemp("plan")
    with story.serving(), story.poison.injected(runner, plan):
        runner.run()
        return story.curves("undisturbed")


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_a_run_that_went_back_is_one_live_run_with_each_step_once(undisturbed: TrackedCurves, story: Story) -> None:
    expected = list(range(5, STEPS + 1, 5))
    for key in ("loss", "learning_rate", "gradient_norm"):
        assert list(undisturbed.values(key)) == expected
    assert list(undisturbed.values("validation/macro_f1")) == [20, 40, 60]
    assert list(undisturbed.values("test/macro_f1")) == [60]
    assert "system/cpu_utilization_percentage" in undisturbed.points and "samples_per_second" in undisturbed.points
    first = undisturbed.tags["holdfast.segment.00002"]
    assert first.startswith("diverged, steps 0 to ") and f"The loss became nan at step {DIVERGED_STEP}" in first
    assert "back to step 29" in undisturbed.tags["holdfast.rollback.001"]
    assert undisturbed.parameters["train.learning_rate"] and undisturbed.info["status"] == "FINISHED"
    times = [at for _, _, at in undisturbed.points["loss"]]
    assert times == sorted(times)


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("is_away", [False, True], ids=["server there", "server away for half of it"])
def test_killed_three_times_and_rolled_back_it_has_the_numbers_of_the_run_that_nothing_interrupted(
    story: Story, undisturbed: TrackedCurves, tmp_path: Path, is_away: bool
) -> None:
    run = "away" if is_away else "killed"
    runner = story.runner(run)
    with story.poison.injected(runner, tmp_path):
        if is_away:
            for step in KILLED_AT:
                kill_at(runner, step)
        with story.serving():
            if not is_away:
                for step in KILLED_AT:
                    kill_at(runner, step)
            runner.run()
            found = story.curves(run)
            report = read_file(story.address, found, "report.html")
            model = httpx.Response(200, content=read_file(story.address, found, "model.json")).json()
    assert len(read_fired(tmp_path)) >= 1
    state = head_of(runner)
    assert sum(segment.outcome == "lost" for segment in state.segments) == len(KILLED_AT) and len(state.rollbacks) == 1
    for key in filter(FROM_STEPS.fullmatch, undisturbed.points):
        assert found.values(key) == undisturbed.values(key), key
    assert state.promoted is not None and model["weights_sha256"] == state.promoted.weights_sha256
    assert b"<html" in report.lower()
    rows = (Path(runner.settings["store"]) / f"runs/{run}/metrics.csv").read_text().splitlines()
    columns = [row.split(",") for row in rows]
    place = columns[0].index("loss")
    assert {int(row[0]): float(row[place]) for row in columns[1:] if row[place]} == undisturbed.values("loss")


def kill_at(runner: Runner, step: int) -> None:
    """SIGKILL everything once a step is promoted that is not before this one, or as soon as it is reported."""
    process = runner.start()
    assert wait_until(lambda: promoted_step(runner) >= step - 5 and runner.last_step_reported() >= step, process), (
        runner.log.read_text()
    )
    kill_everything(process)


def promoted_step(runner: Runner) -> int:
    head = Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"])).find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def head_of(runner: Runner) -> RunState:
    return Manifest(LocalStore(Path(runner.settings["store"])), str(runner.settings["run"])).load_head().state
