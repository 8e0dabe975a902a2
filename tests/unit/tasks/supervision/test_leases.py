"""The lease of a segment or an evaluation: whoever comes next finds it, and settles it once however often."""

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from storage.errors import RunBusyError
from storage.logs import LOG_NAME
from storage.objects.local_store import LocalStore
from storage.runs.run_state import Lease
from storage.runs.segments import segment_path
from storage.runs.transitions import take_lease
from tasks.cluster.processes import wait_for_orphans
from tasks.cluster.ranks import SPECIFICATION_NAME
from tasks.configuration.run import DataConfig, RunConfig, SegmentConfig
from tasks.recovery.settle import recover_run, settle_segment
from tasks.reporting.status import read_status
from tasks.run_paths import RunPaths
from tasks.supervision.launch import Work, find_folder, hold_lease
from tests.helpers.commands import processes_mentioning, wait_until
from tests.helpers.lock_holders import holding
from tests.helpers.runs import make_run
from training.agents.locks import rank_lock

CONFIG = RunConfig(
    run="run", data=DataConfig(text="t", label="l", kind="binary"), segment=SegmentConfig(grace_seconds=0.1)
)


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    store = LocalStore(tmp_path / "store")
    return RunPaths(store, make_run(store), tmp_path / "scratch" / "run", tmp_path / "data")


def hold(run_paths: RunPaths, work: Work = "train") -> Lease:
    """The lease, and what its ranks leave in their folder."""
    lease = hold_lease(CONFIG, run_paths, work).state.lease
    assert lease is not None
    folder = find_folder(run_paths, lease)
    folder.mkdir(parents=True)
    (folder / LOG_NAME).write_text("what the ranks said")
    return lease


def specify(run_paths: RunPaths, lease: Lease) -> Path:
    """The file with what ranks are told, as far as it says which segment they are of."""
    path = find_folder(run_paths, lease) / SPECIFICATION_NAME
    path.write_text(json.dumps({"store": run_paths.store.address, "run": "run", "fence": lease.fence}))
    return path


def test_a_person_who_looks_at_the_files_is_left_alone(run_paths: RunPaths) -> None:
    folder = find_folder(run_paths, hold(run_paths))
    files = [folder / SPECIFICATION_NAME, rank_lock(folder, 0)]
    for file in files:
        file.touch()
    with subprocess.Popen(["tail", "-f", *map(str, files)], stdout=subprocess.DEVNULL) as looking:
        try:
            wait_until(lambda: looking.pid in processes_mentioning(str(folder)))
            assert wait_for_orphans(folder, grace_seconds=0.0) == 0
            assert looking.poll() is None
        finally:
            looking.kill()


def test_orphaned_ranks_are_found_after_scratch_was_changed_and_their_folder_is_left(
    run_paths: RunPaths, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = hold(run_paths)
    specification = specify(run_paths, lease)
    elsewhere = RunPaths(run_paths.store, run_paths.manifest, tmp_path / "new" / "run", tmp_path / "data")
    with holding(specification.parent) as orphan:
        assert settle_segment(CONFIG, elsewhere, lease).outcome == "lost"
        assert orphan.wait(10) == -signal.SIGKILL
    assert specification.exists()
    assert f"{specification.parent} for what segment" in caplog.text and "It is left as it is" in caplog.text


@pytest.mark.parametrize("name", ["photos", "00000007", "evaluation-00000007"])
def test_a_folder_that_is_not_in_scratch_is_left_with_all_that_works_in_it(
    name: str, run_paths: RunPaths, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / name
    folder.mkdir(parents=True)
    (folder / LOG_NAME).write_text("a diary")
    lease = hold(run_paths).model_copy(update={"scratch": str(folder)})
    with holding(folder) as strangers:
        settle_segment(CONFIG, run_paths, lease)
        assert strangers.poll() is None
    assert (folder / LOG_NAME).read_text() == "a diary"
    assert find_log(run_paths, lease) is None


@pytest.mark.parametrize("linked", ["segment", "run"])
def test_nothing_is_removed_through_a_link(linked: str, run_paths: RunPaths, tmp_path: Path) -> None:
    lease = hold(run_paths)
    folder = find_folder(run_paths, lease)
    there = {"segment": folder, "run": run_paths.scratch}[linked]
    elsewhere = there.rename(tmp_path / "elsewhere")
    there.symlink_to(elsewhere)
    settle_segment(CONFIG, run_paths, lease)
    recover_run(CONFIG, run_paths)
    assert (elsewhere / (LOG_NAME if linked == "segment" else f"{folder.name}/{LOG_NAME}")).exists()
    assert find_log(run_paths, lease) is None


def test_a_folder_of_a_segment_in_scratch_is_put_away(run_paths: RunPaths) -> None:
    lease = hold(run_paths)
    settle_segment(CONFIG, run_paths, lease)
    assert not find_folder(run_paths, lease).exists()
    assert find_log(run_paths, lease) == b"what the ranks said"


def find_log(run_paths: RunPaths, lease: Lease) -> bytes | None:
    key = f"{segment_path('run', lease.fence)}/{LOG_NAME}"
    return run_paths.store.read(key) if key in run_paths.store.list_keys(key) else None


def test_status_names_the_ranks_that_live_with_process_and_host(run_paths: RunPaths) -> None:
    folder = find_folder(run_paths, hold(run_paths))
    with holding(folder) as rank:
        life = read_status(run_paths.store, "run")["holder"]
        assert life["ranks"] == [{"rank": 0, "pid": rank.pid, "host": life["host"]}]
    assert read_status(run_paths.store, "run")["holder"]["ranks"] == []


def test_an_orphan_that_was_killed_is_not_waited_for_where_its_parent_leaves_it_a_zombie(run_paths: RunPaths) -> None:
    lease = hold(run_paths)
    with holding(find_folder(run_paths, lease)) as orphan:  # this process does not ask how it ended, before the end
        assert settle_segment(CONFIG, run_paths, lease).outcome == "lost"
        wait_until(lambda: psutil.Process(orphan.pid).status() == psutil.STATUS_ZOMBIE)


def test_processes_on_this_machine_are_not_those_of_a_holder_on_another_one(run_paths: RunPaths) -> None:
    lease = hold(run_paths)
    elsewhere = lease.model_copy(update={"holder": lease.holder.model_copy(update={"pid_scope": "another boot"})})
    with holding(find_folder(run_paths, lease)) as alike:
        assert settle_segment(CONFIG, run_paths, elsewhere).outcome == "lost"
        assert alike.poll() is None


def test_a_lease_of_before_is_looked_for_where_the_configuration_says(run_paths: RunPaths) -> None:
    lease = hold(run_paths).model_copy(update={"scratch": None})
    assert find_folder(run_paths, lease) == run_paths.segment_scratch(lease.fence)


def test_a_segment_is_settled_once_however_often_that_is_tried(run_paths: RunPaths) -> None:
    lease = hold(run_paths)
    first = settle_segment(CONFIG, run_paths, lease)
    assert settle_segment(CONFIG, run_paths, lease) == first
    assert run_paths.manifest.load_head().state.segments == [first]


def test_a_lease_whose_answer_was_lost_is_taken_for_ours_and_anothers_is_not(run_paths: RunPaths) -> None:
    lease = hold(run_paths)
    assert hold_lease(CONFIG, run_paths, "train").state.lease == lease
    run_paths.manifest.commit("ended", lambda state, _generation: state.model_copy(update={"lease": None}))
    other = lease.holder.model_copy(update={"pid": lease.holder.pid + 1})
    run_paths.manifest.commit("segment began", take_lease(other, 1))
    with pytest.raises(RunBusyError, match="was just taken over by process"):
        hold_lease(CONFIG, run_paths, "train")


def test_an_evaluation_that_was_cut_off_leaves_no_segment(run_paths: RunPaths) -> None:
    lease = hold(run_paths, "evaluate")
    assert lease.work == "evaluate"
    state = recover_run(CONFIG, run_paths)
    assert (state.lease, state.segments) == (None, [])
    assert not find_folder(run_paths, lease).exists()
