"""What `status` says of a run: nothing is left out that a person has to know, and nothing is said that is not known."""

import inspect
import io
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.status import render_status
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_records import ViewRecord, ViewTotals
from storage.runs.run_state import SegmentRecord, ValidationFigures
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import end_segment, promote, reconfigure, take_lease
from tasks.configuration.run import DataConfig, RunConfig
from tasks.reporting.all_runs import list_runs
from tasks.reporting.quarantined import describe_setback
from tasks.reporting.status import read_status
from tasks.segment import train_segment
from tasks.verification.scrubbing import scrub_store
from tests.helpers.runs import BATCH_SIZE, lease_run, make_checkpoint, make_run, record_of
from training.configuration import TrainConfig


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def shown(status: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=1000)
    console.print(render_status(status), crop=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def train_to(store: LocalStore, folder: Path, *steps: int) -> Manifest:
    """A complete run of 100 steps that has saved these."""
    manifest = make_run(store)
    fence = lease_run(manifest)
    for step in steps:
        record = record_of(make_checkpoint(store, folder / "files", step, fence))
        manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    ended = SegmentRecord(
        fence=fence, outcome="completed", cause="", first_step=0, last_step=100, world_size=1,
        planned_steps=1000, started_at=0.0,
        seconds=9.0, steps_lost=0, phases={},
    )  # fmt: skip
    manifest.commit("ended", end_segment(ended))
    return manifest


def begin_segment(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the flow does, with ranks that end at once without an outcome."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    data = DataConfig(text="t", label="l", kind="binary")
    config = RunConfig(run="run", store=store.address, data=data, train=TrainConfig(batch_size=BATCH_SIZE, steps=100))
    # `recover` comes before, and puts the configuration into the manifest.
    Manifest(store, "run").commit("configuration changed", reconfigure(config.model_dump(mode="json"), 100))
    record, _sentence = inspect.unwrap(train_segment)(config)
    assert record.outcome == "lost"


@pytest.mark.parametrize(
    ("steps", "meaning"),
    [
        ((100,), "No other checkpoint is kept: the run does not begin anew by itself."),
        ((60, 100), "The run goes on from the checkpoint of step 60 and trains 40 steps again."),
    ],
)
def test_a_damaged_checkpoint_that_was_quarantined_is_named_with_why_and_what_it_means(
    store: LocalStore, tmp_path: Path, steps: tuple[int, ...], meaning: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    manifest = train_to(store, tmp_path, *steps)
    newest = manifest.load_head().state.kept[0]
    assert read_status(store, "run")["setback"] is None
    store.write(f"{newest.path}/state.json", b"{}")
    monkeypatch.setattr("tasks.verification.scrubbing.reread_seconds", lambda _state: 0.0)
    rot = scrub_store(store, "run")["damaged"][0]
    assert rot["is_quarantined"] and meaning in rot["message"]

    status = read_status(store, "run")
    resume_step = steps[0] if len(steps) > 1 else 0
    assert (status["step"], status["steps_lost_total"]) == (resume_step, 100 - resume_step)
    assert status["setback"].startswith(meaning)
    said = shown(status)
    assert "The checkpoint of step 100 was found damaged and quarantined on 20" in said
    assert "state.json was changed" in said and meaning in said

    if len(steps) > 1:  # else nobody may begin one
        caplog.clear()
        begin_segment(store, monkeypatch)
        assert "state.json was changed" in caplog.text and meaning in caplog.text
    assert manifest.load_head().state.steps_lost == 100 - resume_step


def test_whose_the_run_is_follows_its_newest_configuration(store: LocalStore) -> None:
    manifest = make_run(store)  # of an older version, whose configuration has no such field
    assert read_status(store, "run")["owner"] is None and "owner" not in shown(read_status(store, "run"))
    for owner in ("first team", "search team"):
        manifest.commit("configuration changed", reconfigure({"owner": owner}, 100))
        status = read_status(store, "run")
        assert status["owner"] == owner and f"\nowner: {owner}\n" in shown(status)
    (listed,) = list_runs(store)["runs"]
    assert listed["owner"] == "search team"
    manifest.commit("configuration changed", reconfigure({"owner": None}, 100))
    assert read_status(store, "run")["owner"] is None


@pytest.mark.parametrize(("written", "read"), [("\x1b[31mred", "\N{REPLACEMENT CHARACTER}[31mred"), (["a"], None)])
def test_an_owner_that_no_configuration_could_have_harms_nobody(store: LocalStore, written: Any, read: object) -> None:
    make_run(store).commit("by hand", reconfigure({"owner": written}, 100))
    status = read_status(store, "run")
    assert status["owner"] == read and "\x1b" not in shown(status)


def test_a_run_that_is_past_what_was_quarantined_is_told_of_no_setback(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.verification.scrubbing.reread_seconds", lambda _state: 0.0)
    manifest = train_to(store, tmp_path, 60, 90)
    store.write(f"{manifest.load_head().state.kept[0].path}/state.json", b"{}")
    scrub_store(store, "run")
    fence = lease_run(manifest)
    record = record_of(make_checkpoint(store, tmp_path / "files", 95, fence))
    state = manifest.commit("promoted", promote(record, RetentionPolicy(newest=3))).state
    assert describe_setback(state) is None
    assert "The checkpoint of step 90 was found damaged" in shown(read_status(store, "run"))


def hold_elsewhere(store: LocalStore, silent_seconds: float) -> None:
    """Another machine holds the run, and gave its last sign of life so long ago."""
    holder = this_process().model_copy(update={"pid_scope": "another boot", "host": "gpu-7", "pid": 4711})
    lease = make_run(store).commit("segment began", take_lease(holder, 2)).state.lease
    assert lease is not None
    write_heartbeat(store, "run", lease.fence, Heartbeat(beat=3, step=5, written_at=time.time() - silent_seconds))


def test_a_run_on_another_machine_that_gives_no_sign_of_life_is_not_called_running(store: LocalStore) -> None:
    hold_elsewhere(store, 3 * 3600)
    status = read_status(store, "run")
    assert status["state"] == "silent"
    assert (status["holder"]["host"], status["holder"]["pid"]) == ("gpu-7", 4711)
    said = shown(status)
    assert "No heartbeat from process 4711 on gpu-7 for 3 h: the last one was on 20" in said
    assert "by its machine's clock, at step 5." in said and "`holdfast run` takes the run over" in said
    assert status["live_step"] == 5 and "in training" not in said


def test_deaths_in_the_segment_under_way_are_shown_and_who_stays_out(store: LocalStore) -> None:
    fence = lease_run(make_run(store))
    views = [ViewRecord(step=4, lost=[1], causes=["SIGSEGV"], num_ranks=2, seconds=0.3)]
    totals = ViewTotals(num_views=1, num_lost=1, num_joined=0, longest_seconds=0.3, stay_out=[1])
    beat = Heartbeat(beat=3, step=5, written_at=time.time())
    write_heartbeat(store, "run", fence, beat)
    assert read_status(store, "run")["holder"]["deaths"] is None
    write_heartbeat(store, "run", fence, beat.model_copy(update={"views": views, "view_totals": totals}))
    status = read_status(store, "run")
    assert "rank died and the others trained on from the same step: rank 1 (SIGSEGV) at step 4" in shown(status)
    assert "Rank 1 died so often that none was begun again" in status["holder"]["deaths"]


def test_a_run_on_another_machine_that_gives_signs_of_life_is_running(store: LocalStore) -> None:
    hold_elsewhere(store, 4)
    status = read_status(store, "run")
    assert status["state"] == "running"
    assert "Held by process 4711 on gpu-7; its last heartbeat is 4." in shown(status)
    assert "in training: step 5, as of 4." in shown(status)


def test_a_holder_on_this_machine_is_judged_by_its_process_alone(store: LocalStore) -> None:
    fence = lease_run(make_run(store))
    write_heartbeat(store, "run", fence, Heartbeat(beat=1, step=1, written_at=time.time() - 9999))
    status = read_status(store, "run")
    assert status["state"] == "running" and "heartbeat" not in shown(status)


def test_of_a_run_that_nobody_trains_no_live_step_is_told(store: LocalStore, tmp_path: Path) -> None:
    manifest = train_to(store, tmp_path, 100)
    assert read_status(store, "run")["live_step"] is None
    manifest.commit("evaluation began", take_lease(this_process(), 1, "evaluate"))
    status = read_status(store, "run")
    assert (status["state"], status["live_step"]) == ("running", None)
    assert "in evaluation on the test split, as of " in shown(status)


def test_of_a_holder_that_is_seen_to_be_dead_no_live_step_is_told(store: LocalStore) -> None:
    dead = this_process().model_copy(update={"start_ticks": 1})
    lease = make_run(store).commit("segment began", take_lease(dead, 1)).state.lease
    assert lease is not None
    write_heartbeat(store, "run", lease.fence, Heartbeat(beat=1, step=7, written_at=time.time()))
    status = read_status(store, "run")
    assert (status["state"], status["live_step"]) == ("lost", None)
    assert "in training" not in shown(status)


def test_a_promotion_that_is_newer_than_the_heartbeat_says_how_far_training_is(
    store: LocalStore, tmp_path: Path
) -> None:
    manifest = make_run(store)
    fence = lease_run(manifest)
    write_heartbeat(store, "run", fence, Heartbeat(beat=1, step=7, written_at=time.time()))
    record = record_of(make_checkpoint(store, tmp_path / "files", 30, fence))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    assert read_status(store, "run")["live_step"] == 30


def test_of_a_run_in_training_loss_speed_time_left_and_the_last_validation_are_told(store: LocalStore) -> None:
    manifest = make_run(store, steps=1000)
    manifest.commit("set", lambda state, _: state.model_copy(update={"config": {"train": {"batch_size": 64}}}))
    fence = lease_run(manifest)
    found = ValidationFigures(metric="macro_f1", value=0.85, step=400, best_value=0.85, best_step=400)
    figures: dict[str, Any] = {"loss": 0.4321, "samples_per_second": 640.0, "validation": found}
    write_heartbeat(store, "run", fence, Heartbeat(beat=1, step=500, written_at=time.time(), **figures))
    status = read_status(store, "run")
    assert status["live"] == figures | {"validation": found.model_dump(mode="json"), "seconds_left": 50.0}
    assert "loss 0.4321; 640 samples/s; 50 s left; validation at step 400: macro-F1 0.8500, best so far" in shown(
        status
    )
    (listed,) = list_runs(store)["runs"]
    assert listed["newest_metric"] == {"name": "macro_f1", "value": 0.85, "step": 400, "split": "validation"}
    assert listed["live"] == status["live"]


def test_a_sign_of_life_from_a_clock_that_is_ahead_is_said_to_be_so(store: LocalStore) -> None:
    manifest = make_run(store)
    begun_now = manifest.load_head().state.model_copy(update={"created_at": time.time()})
    manifest.commit("begun now", lambda _state, _number: begun_now)
    fence = lease_run(manifest)
    write_heartbeat(store, "run", fence, Heartbeat(beat=3, step=7, written_at=time.time() + 600))
    status = read_status(store, "run")
    assert "by the clock of this machine it is" in status["clock"] and status["clock"] in shown(status)
    write_heartbeat(store, "run", fence, Heartbeat(beat=4, step=7, written_at=time.time()))
    assert read_status(store, "run")["clock"] is None
