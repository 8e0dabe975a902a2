"""Tracking beside a segment: nobody waits for it, whatever the tracker does, and it is told of once."""

import time
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, RunDivergedError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import Throughput
from tasks.config.load import configure
from tasks.configuration.tracking import TrackingConfig
from tasks.tracking import recorder, trouble
from tasks.tracking.marks import read_marks
from tasks.tracking.mlflow_server import MlflowServer
from tasks.tracking.recorder import tracking
from tasks.tracking.required import require_tracking
from tasks.tracking.run_end import sending_the_rest
from tasks.tracking.tracker import TrackerError
from tests.helpers.fake_tracker import FakeTracker
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.prefect_server import find_free_port
from tests.helpers.silent_servers import running_dripping_server, running_silent_server
from training.metrics.reporter import Report

SPEED = Throughput(samples_per_second=64, tokens_per_second=640, input_wait_fraction=0.25)
# That nobody waits for anybody shows in this time also on a machine that does much else.
AT_ONCE_SECONDS = 1.0


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With a run, whose resume point is at step 30."""
    store = LocalStore(tmp_path / "store")
    make_kept_run(store, tmp_path)
    return store


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "_warned", set())


def config_of(address: str, seconds: float = 0.5) -> TrackingConfig:
    return TrackingConfig(kind="mlflow", uri=address, timeout_seconds=seconds)


def track_a_segment(config: TrackingConfig, store: LocalStore, notes: list[str]) -> float:
    """A segment that promotes something; the longest time that anybody in it waited."""
    point = Manifest(store, "run").load_head().state.kept[0]
    with tracking(config, store, "run", notes.append, has_machine=True) as tracker:
        longest = 0.0
        for step in range(100):
            began = time.monotonic()
            tracker.show(Report(phase="train", step=step, throughput=SPEED))
            tracker.promoted(point)
            longest = max(longest, time.monotonic() - began)
    return longest


def test_a_tracker_that_hangs_is_waited_for_neither_in_training_nor_for_long_at_the_end(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "END_SECONDS", 0.5)
    notes: list[str] = []
    with running_silent_server() as server:
        config = config_of(server.address, seconds=60)
        began = time.monotonic()
        longest = track_a_segment(config, store, notes)
        assert time.monotonic() - began < 0.5 + 10 * AT_ONCE_SECONDS  # not for the time limit of the request
        assert server.connections  # it was asked
    assert longest < AT_ONCE_SECONDS
    (note,) = notes
    assert server.address in note and "The run goes on as ever" in note


def test_the_same_trouble_is_told_once_by_segments_and_the_end_of_the_flow(store: LocalStore) -> None:
    notes: list[str] = []
    config = config_of(f"http://127.0.0.1:{find_free_port()}")
    for _ in range(2):
        track_a_segment(config, store, notes)
    with sending_the_rest(config, lambda: store, "run", notes.append):
        pass
    (note,) = notes
    assert "does not answer" in note and "Connection refused" in note
    marks = read_marks(store, "run").marks
    assert [mark.step for mark in marks] == [30]  # what was measured waits in the store


def test_what_a_segment_measured_is_sent_at_its_promotion(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTracker()
    monkeypatch.setattr(recorder, "MlflowServer", lambda _config: fake)
    notes: list[str] = []
    track_a_segment(config_of("http://tracker"), store, notes)
    (live,) = fake.live
    assert notes == []
    assert live.curve("validation/macro_f1") == []
    assert [step for step, _ in live.curve("system/cpu_utilization_percentage")] == [30]
    assert live.run.status == "SCHEDULED" and live.run.tags["holdfast.resume_point.step"] == "30"


def test_what_could_not_be_sent_is_sent_when_the_flow_ends_also_by_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker()
    monkeypatch.setattr("tasks.tracking.run_end.MlflowServer", lambda _config: fake)
    with pytest.raises(RunDivergedError), sending_the_rest(config_of("http://t"), lambda: store, "run", print):
        raise RunDivergedError("The run diverged.")
    (live,) = fake.live
    assert set(live.files) == {"checkpoints.json"}
    assert b'"step": 30' in live.files["checkpoints.json"]


def test_an_error_of_the_configuration_sends_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTracker()
    monkeypatch.setattr("tasks.tracking.run_end.MlflowServer", lambda _config: fake)
    with pytest.raises(ConfigurationError), sending_the_rest(config_of("http://t"), lambda: store, "run", print):
        raise ConfigurationError("A mistake.")
    assert fake.num_calls == 0


def test_a_server_that_answers_drop_by_drop_or_with_a_page_is_given_up(store: LocalStore) -> None:
    for body, seconds in ((b"<html>Log in</html>", 0.0), (b"x" * 1000, 0.2)):
        with running_dripping_server(body, seconds) as address:
            began = time.monotonic()
            with pytest.raises(TrackerError, match=r"no MLflow server|takes too long"):
                MlflowServer(config_of(address)).find_runs("1" * 32)
            assert time.monotonic() - began < 10 * AT_ONCE_SECONDS


def test_without_a_server_or_with_a_password_in_its_address_a_run_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigurationError, match=r"Set tracking\.uri"):
        require_tracking(TrackingConfig(kind="mlflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with pytest.raises(ConfigurationError, match=r"MLFLOW_TRACKING_URI: the address .* found sqlite:\.\.\."):
        require_tracking(TrackingConfig(kind="mlflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    require_tracking(TrackingConfig(kind="mlflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret\n")
    with pytest.raises(ConfigurationError, match="MLFLOW_TRACKING_TOKEN has characters") as refused:
        require_tracking(TrackingConfig(kind="mlflow"))
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="no user name and no password") as refused:
        configure(TrackingConfig, {"kind": "mlflow", "uri": "http://me:secret@mlflow:5000"}, "settings")
    assert "secret" not in str(refused.value)
    for port in ("abc", "500000"):
        with pytest.raises(ValueError, match="no such port"):
            TrackingConfig(kind="mlflow", uri=f"http://mlflow:{port}")
    with pytest.raises(ValueError, match="uri goes with kind = 'mlflow'"):
        TrackingConfig(uri="http://mlflow:5000")


def test_tensorboard_files_without_its_package_are_a_mistake_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.tracking.required.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[tensorboard\]'"):
        require_tracking(TrackingConfig(files=["tensorboard"]))
