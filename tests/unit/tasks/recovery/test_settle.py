"""A run is never taken from a process that lives; what a segment left is counted once, whoever settles it."""

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.events.schemas.events import Event

from storage.errors import RunBusyError, StoreError
from storage.objects.local_store import LocalStore
from storage.runs.holders import is_alive, this_process
from storage.runs.kept_outcomes import Launch, keep_outcome
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import Holder, Lease, RunState
from storage.runs.segments import Heartbeat as Beat
from storage.runs.segments import OutcomeRecord, find_heartbeat, find_outcome, write_heartbeat, write_outcome
from storage.runs.transitions import promote, take_lease
from tasks.cluster.reports import read_last_reports
from tasks.configuration.run import DataConfig, RunConfig
from tasks.prefect_bridge.alerts import NO_PROGRESS, SEGMENT_LOST
from tasks.recovery import settle
from tasks.recovery.settle import recover_run, require_dead_holder
from tasks.run_paths import RunPaths
from tasks.supervision import heartbeat as heartbeats
from tasks.supervision.hang import HangWatch
from tasks.supervision.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.holders import dead_process, parent_process, process_elsewhere
from tests.helpers.lock_holders import holding
from tests.helpers.runs import BATCH_SIZE, lease_at, make_checkpoint, make_run, record_of
from training.configuration import TrainConfig
from training.metrics.reporter import Report

CONFIG = RunConfig(
    run="run", data=DataConfig(text="t", label="l", kind="binary"), train=TrainConfig(batch_size=BATCH_SIZE)
)


def run_paths_of(store: Any, folder: Path) -> RunPaths:
    return RunPaths(store, Manifest(store, "run"), folder / "scratch", folder / "data")


def begin_segment(run_paths: RunPaths, holder: Holder) -> Lease:
    lease = run_paths.manifest.commit("segment began", take_lease(holder, world_size=2)).state.lease
    assert lease is not None
    return lease


def state_of(run_paths: RunPaths) -> RunState:
    return run_paths.manifest.load_head().state


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    """A run that was created and not yet trained."""
    store = LocalStore(tmp_path / "store")
    make_run(store)
    return run_paths_of(store, tmp_path)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """The store of a run whose segment died: step 10 is promoted, 20 complete, 30 not; it was seen at step 34."""
    store, files = LocalStore(tmp_path / "template"), tmp_path / "files"
    make_run(store)
    run_paths = run_paths_of(store, tmp_path)
    fence = begin_segment(run_paths, dead_process()).fence
    kept = record_of(make_checkpoint(store, files, 10, fence))
    run_paths.manifest.commit("promoted", promote(kept, RetentionPolicy(newest=9)))
    make_checkpoint(store, files, 20, fence)
    store.delete(f"{make_checkpoint(store, files, 30, fence).path}/index.json")
    write_heartbeat(store, "run", fence, Beat(beat=7, step=34, written_at=time.time()))
    return store.root


def test_a_lost_segment_leaves_its_newest_complete_checkpoint_and_the_steps_after_it_are_lost(
    template: Path, tmp_path: Path
) -> None:
    run_paths = run_paths_of(LocalStore(template), tmp_path)
    state = recover_run(CONFIG, run_paths)
    assert state.lease is None and state == state_of(run_paths)
    assert [record.step for record in state.kept] == [20, 10]
    (record,) = state.segments
    assert (record.outcome, record.first_step, record.last_step, record.steps_lost) == ("lost", 0, 34, 14)
    assert record.steps_lost_is_least and state.steps_lost_is_least
    assert (record.seconds, record.world_size) == (7 * HEARTBEAT_SECONDS, 2)


def test_who_is_on_call_is_told_once_of_a_segment_that_was_lost_and_where_the_run_goes_on(
    template: Path, tmp_path: Path, told: Callable[[], list[Event]], caplog: pytest.LogCaptureFixture
) -> None:
    run_paths = run_paths_of(LocalStore(template), tmp_path)
    for _ in range(2):
        recover_run(CONFIG, run_paths)
    (event,) = told()
    assert (event.event, event.resource.id) == (SEGMENT_LOST, f"holdfast.{run_paths.store.address}/runs/run")
    assert event.payload.items() >= {"run": "run", "outcome": "lost", "step": 34, "steps_lost": 14}.items()
    message = f"Segment ended: lost ({settle.LOST}). The run goes on from step 20, at least 14 steps lost."
    assert event.payload["message"] == message
    assert caplog.text.count("Segment ended") == 1


def test_ranks_that_hung_and_were_killed_are_told_as_such_and_not_as_lost_too(
    run_paths: RunPaths, told: Callable[[], list[Event]]
) -> None:
    watch = HangWatch(hang_seconds=0.0)
    assert watch.is_hung()
    write_outcome(run_paths.store, "run", begin_segment(run_paths, dead_process()).fence, watch.describe_end(2))
    recover_run(CONFIG, run_paths)
    (event,) = told()
    assert event.event == NO_PROGRESS
    assert "Segment ended: failed (The ranks reported nothing for 0 s" in event.payload["message"]
    assert state_of(run_paths).segments[0].steps_lost_is_least


@pytest.mark.parametrize("outcome", ["budget", "preempted", "completed"])
def test_a_segment_that_ended_in_good_order_is_no_alert(
    run_paths: RunPaths, told: Callable[[], list[Event]], outcome: Any
) -> None:
    record = OutcomeRecord(outcome=outcome, first_step=0, last_step=4, world_size=2, seconds=9.5, phases={})
    write_outcome(run_paths.store, "run", begin_segment(run_paths, dead_process()).fence, record)
    assert recover_run(CONFIG, run_paths).segments[0].outcome == outcome
    assert told() == []


def test_settling_that_is_cut_off_at_any_operation_is_finished_by_the_next_process_with_the_same_record(
    template: Path, tmp_path: Path
) -> None:
    expected = recover_run(
        CONFIG, run_paths_of(LocalStore(Path(shutil.copytree(template, tmp_path / "whole"))), tmp_path)
    )
    num_cut_off = 0
    for at in itertools.count(1):
        store = LocalStore(Path(shutil.copytree(template, tmp_path / f"store-{at}")))
        try:
            recover_run(CONFIG, run_paths_of(StoreCutOff(store, at, ProcessGoneError()), tmp_path))
        except ProcessGoneError:
            num_cut_off += 1
            state = recover_run(CONFIG, run_paths_of(store, tmp_path))
            assert state.segments == expected.segments and state.lease is None
            assert [record.step for record in state.kept] == [20, 10]
        else:
            break
    assert num_cut_off >= 10


def test_what_the_ranks_said_themselves_is_taken_and_what_they_printed_is_kept(run_paths: RunPaths) -> None:
    fence = begin_segment(run_paths, dead_process()).fence
    folder = run_paths.segment_scratch(fence)
    folder.mkdir(parents=True)
    (folder / "ranks.log").write_text("rank 0: out of memory\n")
    said = OutcomeRecord(
        outcome="failed", cause="out of memory", is_final=True, first_step=0, last_step=4, world_size=2, seconds=9.5,
        phases={"train": 8.0}, is_abandoned=True,
    )  # fmt: skip
    write_outcome(run_paths.store, "run", fence, said)
    (record,) = recover_run(CONFIG, run_paths).segments
    names = ("outcome", "cause", "is_final", "last_step", "seconds", "phases", "is_abandoned")
    taken = {name: getattr(record, name) for name in names}
    assert taken == said.model_dump(include=set(taken))
    assert record.steps_lost == 4 and not record.steps_lost_is_least
    assert run_paths.store.read(f"runs/run/segments/{fence:08d}/ranks.log") == b"rank 0: out of memory\n"
    assert not folder.exists()


def keep_in(run_paths: RunPaths, lease: Lease, holder: Holder | None = None) -> None:
    """As ranks of this lease that could not reach the store do."""
    store = run_paths.store.address
    launch = Launch(store=store, run="run", fence=lease.fence, supervisor=holder or lease.holder)
    folder = run_paths.segment_scratch(lease.fence)
    folder.mkdir(parents=True)
    said = OutcomeRecord(
        outcome="preempted", cause="asked to stop", first_step=0, last_step=4, world_size=2, seconds=9.5, phases={}
    )
    keep_outcome(folder, 0, launch, said)


@pytest.mark.parametrize("holder", [dead_process(), process_elsewhere()], ids=["here", "before a reboot"])
def test_an_outcome_that_ranks_could_only_keep_here_is_taken_and_put(
    holder: Holder, run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SILENCE_SECONDS", 0.0)
    lease = begin_segment(run_paths, holder)
    keep_in(run_paths, lease)
    (record,) = recover_run(CONFIG, run_paths).segments
    assert (record.outcome, record.cause, record.last_step) == ("preempted", "asked to stop", 4)
    assert find_outcome(run_paths.store, "run", lease.fence) is not None
    assert not run_paths.segment_scratch(lease.fence).exists()


def test_an_outcome_that_ranks_of_another_launch_kept_here_is_not_taken(run_paths: RunPaths) -> None:
    keep_in(run_paths, begin_segment(run_paths, dead_process()), this_process())
    (record,) = recover_run(CONFIG, run_paths).segments
    assert (record.outcome, record.cause) == ("lost", settle.LOST)


def test_the_last_step_and_phases_are_read_from_reports_whose_last_line_was_cut_off(run_paths: RunPaths) -> None:
    fence = begin_segment(run_paths, dead_process()).fence
    write_heartbeat(run_paths.store, "run", fence, Beat(beat=1, step=3, phases={"start": 2.0}, written_at=1.0))
    run_paths.segment_scratch(fence).mkdir(parents=True)
    reports = [Report(phase="train", step=step, phases={"start": 2.0, "train": step * 1.5}) for step in (5, 6, 7)]
    lines = "\n".join(report.model_dump_json() for report in reports)
    (run_paths.segment_scratch(fence) / "progress.jsonl").write_text(lines[:-9])
    (record,) = recover_run(CONFIG, run_paths).segments
    assert (record.last_step, record.steps_lost) == (6, 6)
    assert (record.phases, record.seconds) == ({"start": 2.0, "train": 9.0}, 11.0)


def test_of_the_reports_of_days_only_the_last_are_read(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = begin_segment(run_paths, dead_process()).fence
    path = run_paths.segment_scratch(fence) / "progress.jsonl"
    path.parent.mkdir(parents=True)
    line = Report(phase="train", step=10**9, loss=1.25, phases={"start": 2.0}).model_dump_json()
    with path.open("w", encoding="utf-8") as file:
        file.truncate(1 << 33)  # 8 GiB of which the disk has next to nothing, and which no memory here takes
        file.seek(0, os.SEEK_END)
        for step in range(9_000, 10_000):
            file.write(f"{line.replace(str(10**9), str(step))}\n")
    began = time.monotonic()
    reports = read_last_reports(path)
    assert time.monotonic() - began < 1 and reports[-1].step == 9_999 and len(reports) > 500
    (record,) = recover_run(CONFIG, run_paths).segments
    assert record.last_step == 9_999


def test_on_another_machine_the_phases_of_a_lost_segment_are_those_of_its_heartbeat(run_paths: RunPaths) -> None:
    fence = begin_segment(run_paths, dead_process()).fence
    write_heartbeat(
        run_paths.store, "run", fence, Beat(beat=4, step=3, phases={"start": 2.0, "train": 9.5}, written_at=1.0)
    )
    (record,) = recover_run(CONFIG, run_paths).segments
    assert (record.last_step, record.phases, record.seconds) == (
        3,
        {"start": 2.0, "train": 9.5},
        15.0,
    )  # three beats came after the first


def test_a_run_that_a_living_process_holds_is_not_touched(run_paths: RunPaths) -> None:
    assert is_alive(parent_process()) is True
    lease = begin_segment(run_paths, parent_process())
    generation = run_paths.manifest.load_head().generation
    with pytest.raises(RunBusyError, match=rf"process {lease.holder.pid} on .*stop it with SIGTERM"):
        recover_run(CONFIG, run_paths)
    assert run_paths.manifest.load_head().generation == generation


def test_an_earlier_attempt_of_this_very_process_is_over(run_paths: RunPaths) -> None:
    begin_segment(run_paths, this_process())
    (record,) = recover_run(CONFIG, run_paths).segments
    assert record.outcome == "lost"


def test_a_holder_on_another_machine_is_dead_once_its_heartbeat_stands_still(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(settle, "WATCH_SECONDS", 0.01)
    lease = begin_segment(run_paths, process_elsewhere())
    write_heartbeat(run_paths.store, "run", lease.fence, Beat(beat=3, step=8, written_at=1.0))
    (record,) = recover_run(CONFIG, run_paths).segments
    assert (record.outcome, record.last_step) == ("lost", 8)


def test_a_holder_on_another_machine_lives_as_long_as_its_heart_beats(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
    lease = begin_segment(run_paths, process_elsewhere())
    with Heartbeat(run_paths, lease), pytest.raises(RunBusyError, match="on another-host"):
        require_dead_holder(run_paths, lease)


class StumblingStore(LocalStore):
    """A store whose first writes fail; `has_recovered` is set by the second one that does not."""

    def __init__(self, root: Path, num_failures: int) -> None:
        super().__init__(root)
        self.has_recovered = threading.Event()
        self._failures_left = num_failures
        self._num_written = 0

    def write(self, key: str, data: bytes) -> None:
        if self._failures_left:
            self._failures_left -= 1
            raise StoreError("the store does not answer")
        super().write(key, data)
        self._num_written += 1
        if self._num_written == 2:
            self.has_recovered.set()


def test_a_store_that_fails_for_a_moment_costs_beats_and_never_the_heart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
    store = StumblingStore(tmp_path / "store", num_failures=3)
    with Heartbeat(run_paths_of(store, tmp_path), lease_at(4, first_step=12)) as heart:
        heart.hear(Report(phase="train", step=17, phases={"train": 3.0}, loss=0.5))
        assert store.has_recovered.wait(60)
    found = find_heartbeat(store, "run", 4)
    assert found is not None and found.beat >= 5 and (found.step, found.phases) == (17, {"train": 3.0})
    assert found.loss == 0.5


def test_no_beat_follows_once_the_lease_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.001)
    store = StumblingStore(tmp_path / "store", num_failures=0)
    with Heartbeat(run_paths_of(store, tmp_path), lease_at(4)):
        assert store.has_recovered.wait(60)
    assert [thread for thread in threading.enumerate() if thread.name == "heartbeat"] == []


def leave_folder(run_paths: RunPaths, name: str, store: str, age_seconds: float) -> Path:
    folder = run_paths.scratch / name
    folder.mkdir(parents=True)
    (folder / "segment.json").write_text(json.dumps({"store": store}))
    (folder / "ranks.log").write_text("last words")
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - age_seconds, time.time() - age_seconds))
    return folder


def test_folders_of_segments_that_were_settled_by_whoever_died_then_are_put_away(run_paths: RunPaths) -> None:
    ours, old = run_paths.store.address, settle.FORGOTTEN_SECONDS + 60
    forgotten = [leave_folder(run_paths, name, ours, old) for name in ("00000002", "evaluation-00000003")]
    kept = [
        leave_folder(run_paths, "00000004", ours, 60),
        leave_folder(run_paths, "00000005", "/another/store", old),
        leave_folder(run_paths, "somebody's", ours, old),
    ]
    recover_run(CONFIG, run_paths)
    assert [folder.exists() for folder in (*forgotten, *kept)] == [False] * 2 + [True] * 3
    assert run_paths.store.read("runs/run/segments/00000002/ranks.log") == b"last words"


def test_a_folder_that_a_process_works_on_is_not_put_away(run_paths: RunPaths) -> None:
    folder = leave_folder(run_paths, "00000002", run_paths.store.address, settle.FORGOTTEN_SECONDS + 60)
    old = time.time() - settle.FORGOTTEN_SECONDS - 60
    with holding(folder):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (old, old))
        recover_run(CONFIG, run_paths)
        assert folder.exists()
    recover_run(CONFIG, run_paths)
    assert not folder.exists()
