"""The commands that read: what they print, for people and as JSON, and that `--set` works on every one of them."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import dataset_sha256
from storage.logs import write_log
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import Lease, RunState, SegmentRecord
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import end_segment, promote, record_metrics
from storage.segment_notes import find_stop
from tasks.config.load import load_configuration
from tasks.text import NOTHING
from tests.helpers.commands import call_here, call_narrow
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.finished_runs import measured_run
from tests.helpers.runs import lease_run, make_checkpoint, record_of

CONFIGURATION = """
run = "first"
store = "STORE"

[data]
text = "text"
label = "domain"
kind = "multiclass"

[train]
steps = 100
"""
# As long as paths are on real machines: no terminal is wide enough for it.
DEEP = "a-folder-with-a-long-name/another-folder-with-a-long-name/and-one-more/store"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / DEEP)


@pytest.fixture
def configuration(tmp_path: Path, store: LocalStore) -> Path:
    """A configuration whose store has two runs: `first` with two checkpoints, `second` with none."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIGURATION.replace("STORE", store.address))
    for run in ("first", "second"):
        config = load_configuration(path, [f"run={run}", "retry.reread_seconds=0.1"])
        state = RunState(
            run=run,
            created_at=1.0,
            config=config.model_dump(mode="json"),
            dataset_digest="d" * 64,
            dataset_sha256="s" * 64,
            steps_total=100,
        )
        Manifest(store, run).create(state)
    manifest = Manifest(store, "first")
    fence = lease_run(manifest)
    for step in (10, 20):
        record = record_of(make_checkpoint(store, tmp_path / f"files-{step}", step, fence, run="first"))
        manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    return path


def read_json(*arguments: object) -> dict[str, Any]:
    result = call_narrow(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("command", ["status", "verify"])
def test_set_chooses_another_run_by_configuration_and_by_address(
    configuration: Path, store: LocalStore, command: str
) -> None:
    first, second = (f"{store.address}/runs/{run}" for run in ("first", "second"))
    assert read_json(command, configuration)["run"] == "first"
    assert read_json(command, configuration, "--set", "run=second")["run"] == "second"
    assert read_json(command, configuration, "--set", "train.steps=7", "--set", "run=second")["run"] == "second"
    assert read_lasting(command, first) == read_lasting(command, configuration)
    assert read_lasting(command, f"{first}/") == read_lasting(command, configuration)
    assert read_lasting(command, first, "--set", "run=second") == read_lasting(command, second)


def in_whole_lines(*arguments: object) -> str:
    """What a command prints where stdout is no terminal."""
    result = call_here(arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def end_segment_of(manifest: Manifest) -> None:
    """The segment under way is lost."""
    lease = manifest.load_head().state.lease
    assert lease is not None
    record = SegmentRecord(
        fence=lease.fence, outcome="lost", cause="", first_step=0, last_step=20, world_size=1,
        planned_steps=1000, started_at=0.0,
        seconds=9.0, steps_lost=0, phases={},
    )  # fmt: skip
    manifest.commit("ended", end_segment(record))


def read_lasting(command: str, *arguments: str | Path) -> dict[str, Any]:
    """What a command says, but for how long ago the holder's last sign of life was."""
    said = read_json(command, *arguments)
    if said.get("holder"):
        said["holder"].pop("silent_seconds")
    return said


def test_a_run_is_found_where_its_store_was_moved_to(configuration: Path, store: LocalStore, tmp_path: Path) -> None:
    moved = store.root.rename(tmp_path / "moved")
    assert read_json("status", f"{moved}/runs/first")["step"] == 20
    assert read_json("status", f"{moved}/runs/first", "--set", "run=second")["step"] == 0
    assert read_json("status", configuration, "--set", f"store={moved}")["step"] == 20


@pytest.mark.parametrize(
    "command", ["status", "logs", "report", "evaluate", "verify", "scrub", "prune", "audit", "advise"]
)
def test_a_run_whose_folder_was_copied_is_refused_and_nothing_is_touched(
    configuration: Path, store: LocalStore, command: str
) -> None:
    shutil.copytree(store.root / "runs/first", store.root / "runs/copy")
    before = list(store.list_keys(""))
    for target in ((f"{store.address}/runs/copy",), (configuration, "--set", "run=copy")):
        result = call_narrow(command, *target)
        assert (result.returncode, result.stdout) == (2, "")
        assert "holds the manifest of run 'first', not of 'copy'" in result.stderr
        assert "Traceback" not in result.stderr
    assert list(store.list_keys("")) == before


def test_a_command_for_one_run_says_which_there_are_where_it_is_given_a_store(
    configuration: Path, store: LocalStore, tmp_path: Path
) -> None:
    in_a_folder_called_runs = tmp_path / "runs" / "store"
    shutil.copytree(store.root, in_a_folder_called_runs)
    for address in (store.address, in_a_folder_called_runs):
        result = call_narrow("prune", address)
        assert (result.returncode, result.stdout) == (2, "")
        assert "is a store, and this command takes one run: STORE/runs/NAME. Its runs are first, second." in (
            result.stderr
        )
    assert json.loads(call_narrow("scrub", in_a_folder_called_runs, "--json").stdout)["runs"] == ["first", "second"]


@pytest.mark.parametrize("command", ["runs", "status"])
def test_the_runs_of_a_store_are_listed(configuration: Path, store: LocalStore, command: str) -> None:
    found = read_json(command, store.address)
    assert found["store"] == store.address
    stands = {run["run"]: (run["state"], run["step"], run["steps_total"], run["error"]) for run in found["runs"]}
    assert stands == {"first": ("running", 20, 100, None), "second": ("created", 0, 100, None)}
    assert [run["address"] for run in found["runs"]] == [f"{store.address}/runs/{run}" for run in ("first", "second")]
    printed = call_narrow(command, store.address).stdout.splitlines()
    assert printed[0] == f"2 runs in {store.address}"
    rows = [re.sub(r"[\d.]+ s ago", "SECONDS ago", " ".join(line.split())) for line in printed[2:]]
    first, second = (re.sub(r"[\d,]+ d (\d+ h )?ago", "DAYS ago", row) for row in rows)  # promoted in 1970
    assert first == f"first running 20 100 {NOTHING} DAYS ago SECONDS ago {NOTHING} {NOTHING}"
    assert second == f"second created 0 100 {NOTHING} {NOTHING} SECONDS ago {NOTHING} {NOTHING}"


def test_of_each_run_goodput_last_sign_of_life_and_newest_metric_are_listed(
    configuration: Path, store: LocalStore, tmp_path: Path
) -> None:
    config = load_configuration(configuration, ["run=measured"]).model_dump(mode="json")
    measured = measured_run("measured", config=config)
    validated = measured.kept[0].model_copy(update={"metric": 0.75})
    manifest = Manifest(store, "measured")
    manifest.create(measured.model_copy(update={"kept": [validated], "promoted": validated, "metrics": None}))
    (listed,) = [run for run in read_json("runs", configuration)["runs"] if run["run"] == "measured"]
    assert listed["newest_metric"] == {
        "name": "macro_f1", "value": 0.75, "step": validated.step, "split": "validation",
    }  # fmt: skip
    assert 0 < listed["goodput"] < 1
    assert listed["last_sign_of_life_at"] == manifest.load_head().written_at
    assert "macro-F1 0.7500, validation\n" in in_whole_lines("runs", store.address)
    manifest.commit("evaluated", record_metrics({"loss": 1.0, "macro_f1": 0.5}, validated.step))
    assert "macro-F1 0.5000, test\n" in in_whole_lines("runs", store.address)


def test_the_list_is_written_as_a_page_also_where_there_is_no_run(
    configuration: Path, store: LocalStore, tmp_path: Path
) -> None:
    page = tmp_path / "runs.html"
    result = call_narrow("runs", store.address, "--page", page, "--json")
    assert result.returncode == 0 and f"Page of all runs: {page}" in result.stderr
    assert len(json.loads(result.stdout)["runs"]) == 2
    written = page.read_text()
    assert written.startswith("<!DOCTYPE html>") and f"{store.address}/runs/first" in written
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert call_narrow("runs", nothing, "--page", page).returncode == 2
    assert "0 runs in 1 store" in page.read_text()


def test_a_store_without_runs_is_an_error(tmp_path: Path) -> None:
    result = call_narrow("runs", tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"There is no run in the store {tmp_path}." in result.stderr


def lease_of(store: LocalStore) -> Lease:
    lease = Manifest(store, "first").load_head().state.lease
    assert lease is not None
    return lease


def test_the_step_of_ranks_under_way_is_told_with_how_old_that_is(configuration: Path, store: LocalStore) -> None:
    lease = lease_of(store)
    write_heartbeat(store, "first", lease.fence, Heartbeat(beat=9, step=33, written_at=time.time() - 3 * 3600))
    status = read_json("status", configuration)
    assert (status["step"], status["live_step"]) == (20, 33)
    assert status["holder"]["silent_seconds"] == pytest.approx(3 * 3600, abs=600)
    assert "in training: step 33, as of 3 h" in in_whole_lines("status", configuration)
    assert [run["live_step"] for run in read_json("runs", configuration)["runs"]] == [33, None]


def test_logs_are_those_of_the_newest_segment_or_of_the_one_that_is_asked_for(
    configuration: Path, store: LocalStore, tmp_path: Path
) -> None:
    address, manifest = f"{store.address}/runs/first", Manifest(store, "first")
    lease = lease_of(store)
    log = tmp_path / "ranks.log"
    log.write_text("a library says\n[rank0]: one\n[rank1]: two\n")
    write_log(store, "first", lease.fence, log)
    assert call_narrow("logs", address).stdout == log.read_text()
    assert call_narrow("logs", configuration, "--rank", 1).returncode == 2  # it has one
    only = call_narrow("logs", configuration, "--rank", 0)
    assert (only.returncode, only.stdout) == (0, "[rank0]: one\n")
    assert only.stderr == f"Segment {lease.fence} of run 'first', from step 0:\n"
    end_segment_of(manifest)
    fence = lease_run(manifest, ranks=2)
    newest = call_narrow("logs", address, "--rank", 1)
    assert (newest.returncode, newest.stdout) == (0, "")
    assert newest.stderr.splitlines()[-1] == "Nothing that its ranks printed is in the store."
    for node in ("n2", "n1"):
        log.write_text(f"{node} said")
        write_log(store, "first", fence, log, node)
    assert call_narrow("logs", address).stdout == "==> node n1 <==\nn1 said\n==> node n2 <==\nn2 said\n"
    assert call_narrow("logs", address, "--segment", lease.fence).stdout.startswith("a library says\n")


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_where_there_is_no_such_log_one_error_says_what_there_is(
    configuration: Path, store: LocalStore, follow: tuple[str, ...]
) -> None:
    lease = lease_of(store)
    mistakes = {
        ("--set", "run=third"): "There is no run 'third'",
        ("--segment", "99"): f"has no segment 99. Its segments, the newest first: {lease.fence}.",
        ("--rank", "4"): f"Segment {lease.fence} has no rank 4: it has 1 rank, and they are counted from 0.",
        ("--set", "run=second", "--segment", "7"): "Run 'second' has no segment yet",
    }
    for arguments, expected in mistakes.items():
        result = call_narrow("logs", configuration, *arguments, *follow)
        assert result.returncode == 2 and result.stdout == ""
        assert expected in " ".join(result.stderr.split())
    assert "Run 'second' has no segment yet" in call_narrow("logs", configuration, "--set", "run=second").stderr


def test_status_is_watched_by_people_and_read_by_programs(configuration: Path) -> None:
    result = call_narrow("status", configuration, "--watch", "--json")
    assert result.returncode == 2
    message = "--watch is for people to look at, and --json for programs: give one of them."
    assert json.loads(result.stdout) == {"error": {"kind": "ConfigurationError", "message": message}}
    assert "--watch is for people to look at, and --json for programs" in result.stderr


def test_a_run_that_cannot_be_read_does_not_hide_the_others(configuration: Path, store: LocalStore) -> None:
    for generation in (store.root / "runs" / "first" / "manifest").iterdir():
        generation.write_bytes(b"not a manifest")
    first, second = read_json("status", store.address)["runs"]
    assert first["run"] == "first" and first["error"].startswith("The manifest ")
    assert (second["run"], second["state"]) == ("second", "created")
    assert "first: " in call_narrow("status", store.address).stdout


def test_status_has_what_other_programs_rely_on(configuration: Path, store: LocalStore) -> None:
    status = read_json("status", configuration)
    assert status["step"] == 20 and status["steps_total"] == 100 and status["state"] == "running"
    assert status["dataset_digest"] == "d" * 64 and status["metrics"] is None and status["segments"] == []
    promoted = status["promoted"]
    assert promoted["step"] == 20 and len(promoted["weights_sha256"]) == len(promoted["digest"]) == 64
    assert Path(promoted["path"]).is_dir()


def test_paths_are_printed_whole_however_narrow_the_terminal(configuration: Path, store: LocalStore) -> None:
    promoted = read_json("status", configuration)["promoted"]
    assert f"resume point {promoted['path']}\n" in call_narrow("status", configuration).stdout
    printed = call_narrow("verify", configuration).stdout
    assert f"Checkpoints of {store.address}/runs/first\n" in printed
    assert Path(promoted["path"]).name in printed


def test_verify_says_which_checkpoint_is_damaged_and_what_becomes_of_it(configuration: Path, store: LocalStore) -> None:
    model = Path(read_json("verify", configuration)["checkpoints"][0]["path"]) / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    result = call_narrow("verify", configuration)
    assert result.returncode == 1
    assert result.stdout.count("DAMAGED") == 1
    assert "`holdfast run` quarantines damaged checkpoints" in result.stdout
    result = call_narrow("verify", configuration, "--json")
    assert result.returncode == 1
    assert [checkpoint["valid"] for checkpoint in json.loads(result.stdout)["checkpoints"]] == [False, True]


def test_prune_says_what_goes_and_what_stays_and_why(configuration: Path, store: LocalStore, tmp_path: Path) -> None:
    manifest = Manifest(store, "first")
    fence = manifest.load_head().state.kept[0].fence
    record = record_of(make_checkpoint(store, tmp_path / "files-30", 30, fence, run="first"))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    no_rollback = ("--set", "divergence.max_rollbacks=0")  # for which an older one would stay
    result = call_narrow("prune", configuration, "--set", "checkpoint.keep=2", *no_rollback)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Policy: keep = 2, keep_best = 1\n" in result.stdout
    assert [line.split()[:2] for line in result.stdout.splitlines()[3:6]] == [
        ["keep", "30"],
        ["keep", "20"],
        ["delete", "10"],
    ]
    assert f"Freed {record.num_bytes} bytes and kept 2 checkpoints with " in result.stdout
    assert len(list((store.root / "runs/first/checkpoints").iterdir())) == 2


def test_advise_recommends_an_interval_compares_it_and_leaves_a_page(configuration: Path, store: LocalStore) -> None:
    config = load_configuration(configuration, ["run=quality"]).model_dump(mode="json")
    Manifest(store, "quality").create(measured_run(config=config))
    address = f"{store.address}/runs/quality"
    result = call_narrow("advise", address)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Continue with: --set checkpoint.every_seconds=140 --set checkpoint.every_steps=280\n" in result.stdout
    assert f"page {store.address}/runs/quality/advice.html\n" in result.stdout
    rows = re.findall(r"^ *(\d+) s .*(recommended|configured) *$", result.stdout, re.MULTILINE)
    assert rows == [("140", "recommended"), ("600", "configured")]
    assert "how often to save" in (store.root / "runs/quality/advice.html").read_text()
    other = read_json("advise", address, "--set", "checkpoint.every_seconds=150", "--failures-per-day", 24)
    assert other["configured"]["every_seconds"] == 150
    assert other["recommended"]["every_seconds"] < 60 and other["rates"]["crashes_per_second"] == 24 / 86_400


def test_report_writes_the_page_of_a_run_that_is_under_way(
    configuration: Path, store: LocalStore, tmp_path: Path
) -> None:
    dataset = publish_small_dataset(store, tmp_path / "work", rows=40)
    state = Manifest(store, "first").load_head().state
    nothing_yet: dict[str, Any] = {"promoted": None, "kept": [], "lease": None}
    trained_on = {"dataset_digest": dataset.digest, "dataset_sha256": dataset_sha256(store, dataset.digest)}
    under_way = state.model_copy(update={"run": "third", **trained_on, **nothing_yet})
    manifest = Manifest(store, "third")
    manifest.create(under_way)
    fence = lease_run(manifest)
    address = f"{store.address}/runs/third"
    assert call_narrow("report", address).stdout == f"{address}/report.html\n"
    assert "0 of 100 steps" in store.read("runs/third/report.html").decode()
    record = record_of(make_checkpoint(store, tmp_path / "files", 30, fence, run="third"))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    out = tmp_path / "page.html"
    assert call_narrow("report", address, "--out", out).stdout == f"{out}\n"
    assert "30 of 100 steps" in out.read_text() and "30 of 100" not in store.read("runs/third/report.html").decode()
    rejected = call_narrow("report", address, "--out", tmp_path / "no-folder" / "page.html")
    assert (rejected.returncode, "Cannot write the report to" in rejected.stderr) == (2, True)


def test_report_says_that_the_data_set_is_gone(configuration: Path) -> None:
    result = call_narrow("report", configuration)
    assert result.returncode == 2
    assert f"There is no data set {'d' * 64}" in " ".join(result.stderr.split())


def test_advise_says_what_it_needs_from_a_run_that_measured_nothing(configuration: Path) -> None:
    result = call_narrow("advise", configuration)
    assert (result.returncode, result.stdout) == (2, "")
    assert "give the figures: --stall-seconds, --durable-seconds, --restart-seconds." in result.stderr
    assert "Traceback" not in result.stderr
    given = ("--stall-seconds", 0.5, "--durable-seconds", 5, "--restart-seconds", 30)
    assert read_json("advise", configuration, *given)["recommended"]["every_steps"] is None
    result = call_narrow("advise", configuration, *given, "--failures-per-day", -1)
    assert result.returncode == 2 and "failures_per_day: must be above 0 (found -1.0)" in result.stderr


def test_verify_of_a_run_without_checkpoints_says_so(configuration: Path) -> None:
    result = call_narrow("verify", configuration, "--set", "run=second")
    assert result.returncode == 0 and "None yet." in result.stdout


def change_holder(store: LocalStore, **changes: object) -> Lease:
    """The lease of the run `first`, with another holder from now on."""
    lease = lease_of(store)
    changed = lease.model_copy(update={"holder": lease.holder.model_copy(update=changes)})
    Manifest(store, "first").commit("another holder", lambda state, _: state.model_copy(update={"lease": changed}))
    return changed


def test_stop_says_when_nobody_can_be_asked(configuration: Path, store: LocalStore) -> None:
    change_holder(store, start_ticks=0)  # another process had this number
    rejected = [call_narrow("stop", f"{store.address}/runs/{run}") for run in ("second", "first")]
    lease = change_holder(store, host="gone", pid_scope="elsewhere")
    write_heartbeat(store, "first", lease.fence, Heartbeat(beat=9, step=33, written_at=time.time() - 3 * 3600))
    rejected.append(call_narrow("stop", f"{store.address}/runs/first"))
    said = ("Run 'second' is not in training", "is gone. `holdfast run` goes on with it", "No heartbeat from process")
    for result, words in zip(rejected, said, strict=True):
        assert (result.returncode, words in result.stderr) == (2, True), result.stderr
    assert not list(store.root.rglob("stop.json"))


def test_stop_asks_the_holder_of_the_lease_and_need_not_wait(configuration: Path, store: LocalStore) -> None:
    result = call_narrow("stop", "--no-wait", configuration)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Asked process {os.getpid()} on ")
    lease = lease_of(store)
    assert find_stop(store, "first", lease.fence) is not None
