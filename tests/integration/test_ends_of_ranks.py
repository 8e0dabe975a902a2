"""Each way in which a rank ends, and the cause that is recorded for it: real ranks, begun and watched by an agent.

`make test` has one of each kind: of the signals that kill, of those that ask, of what fails in training, and of what a
store answers. What each means is in `unit/tasks/cluster/test_rank_ends.py`, too.
Ranks that hang are in `test_hang.py`, and what a run leaves that came to its end in `test_user_environment.py`.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.kept_outcomes import Launch, settle_outcome
from storage.runs.segments import find_outcome
from tasks.cluster.processes import POLL_SECONDS, wait_for_orphans
from tasks.cluster.rank_ends import describe_rank_ends
from tasks.recovery.settle import describe_cause
from tests.helpers.commands import ROOT, Runner, processes_mentioning, wait_until
from tests.helpers.control_groups import group_with_memory
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.fault_plans import FaultPlan, Moment, StepFault, read_fired
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import open_s3_store, use_s3
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import launch, make_spec, read_log
from training.agents.locks import find_holders
from training.spec import SegmentSpec

GRACE_SECONDS = 600.0  # for what hangs, not for what is slow
AT = 3  # the step at which a fault in training takes place
SAID_NOTHING = FaultPlan().failing(Moment("rank", "link", "outcome"), "EIO", times=None)
NOT_TAKEN = FaultPlan().failing(Moment("rank", "link", "segments/N/outcome.json"), "EIO", times=None)
NO_DATASET = Moment("rank", "read", "dataset.json")


@dataclass(frozen=True)
class End:
    """What ends the ranks: a plan that they meet, or what is done when they train; and what is recorded then."""

    name: str
    cause: str
    outcome: str | None = None
    plan: FaultPlan | None = None
    strike: Callable[[SegmentSpec], None] | None = None


def send(number: signal.Signals, *ranks: int | None) -> Callable[[SegmentSpec], None]:
    """Send a signal to ranks, or to the agent."""

    def strike(spec: SegmentSpec) -> None:
        for holder in find_holders(spec.scratch_folder):
            if holder.rank in ranks:
                os.kill(holder.pid, number)

    return strike


def at_step(effect: str) -> FaultPlan:
    return FaultPlan().having(StepFault(effect, 1, AT))  # type: ignore[arg-type]


# Of one of several that are killed the others train on: `test_survivors.py`.
KILLED = r"^no outcome recorded\. Rank 0 \(process \d+\) was killed with .* Rank 1 \(process \d+\) was killed with "
ASKED = "^asked to stop by a signal$"
ALONE = "^the process that supervised the segment was killed; the ranks saved and left$"
ENDS = (
    End("SIGKILL", KILLED + "SIGKILL: by a person, or by the kernel", strike=send(signal.SIGKILL, 0, 1)),
    End("SIGSEGV", KILLED + "SIGSEGV: it read memory that is not its own", strike=send(signal.SIGSEGV, 0, 1)),
    End("SIGBUS", KILLED + "SIGBUS: the shared memory in /dev/shm", strike=send(signal.SIGBUS, 0, 1)),
    End("SIGABRT", KILLED + "SIGABRT: a library found an error", strike=send(signal.SIGABRT, 0, 1)),
    End("SIGTERM to a rank", ASKED, "preempted", strike=send(signal.SIGTERM, 1)),
    End("SIGINT to a rank", ASKED, "preempted", strike=send(signal.SIGINT, 1)),
    End("SIGTERM to the agent", ASKED, "preempted", strike=send(signal.SIGTERM, None)),
    End("SIGKILL of the agent", ALONE, "preempted", strike=send(signal.SIGKILL, None)),
    End("exit code", r"Rank 1 \(process \d+\) left with exit code 3 and said no reason", plan=at_step("exit")),
    End("an error", "^rank 1: RuntimeError: Told to fail$", "failed", plan=at_step("error")),
    End("out of memory", "^rank 1: out of memory on cpu in a microbatch of ", "failed", plan=at_step("out_of_memory")),
    End(
        "store away",
        r"^no outcome recorded\. Rank \d \(process \d+\) could not reach the store: ",
        plan=SAID_NOTHING.failing(NO_DATASET, "EIO", times=None),
    ),
    End(
        "refused by the store",
        r"^no outcome recorded\. Rank \d \(process \d+\) was refused by the store",
        plan=SAID_NOTHING.failing(NO_DATASET, "EACCES", times=None),
    ),
    End(
        "disk full",
        r"^no outcome recorded\. Rank 1 \(process \d+\) found a full disk: OSError: \[Errno 28\]",
        plan=FaultPlan().disk_full(Moment("rank", "open", "stacks-", rank=1)),
    ),
    End(  # the other one waits for it, hears no signal there, and is not left to wait for as long as a save may take
        "SIGKILL before the ranks have met",
        r"^no outcome recorded\. Rank 1 \(process \d+\) was killed with SIGKILL",
        plan=FaultPlan().kill(Moment("rank", "open", "stacks-", rank=1)),
    ),
)
MEMORY = 2 << 30  # bytes, for a supervisor, its agent and two ranks: about a half is used
SELDOM = (
    "SIGSEGV", "SIGBUS", "SIGABRT", "SIGINT to a rank", "SIGTERM to the agent", "exit code", "an error",
    "refused by the store", "SIGKILL before the ranks have met",
)  # fmt: skip


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However they end, agent and ranks leave nothing where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.rglob("*")) == []


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, id=end.name, marks=[pytest.mark.slow] if end.name in SELDOM else []) for end in ENDS],
)
def test_the_recorded_cause_names_what_ended_the_rank(
    end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    steps = 1_000_000 if end.strike is not None else 20
    spec = make_spec(store, dataset, tmp_path / "segment", steps=steps, ranks=2)
    spec = spec.model_copy(update={"store_seconds": 0.5})
    plan = end.plan or FaultPlan()
    for name, value in plan.environment(tmp_path / "plan", [tmp_path / "store", tmp_path / "segment"]).items():
        monkeypatch.setenv(name, value)
    is_struck = end.strike is None
    with launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if not is_struck and ranks.read_reports() and end.strike is not None:
                is_struck = True
                end.strike(spec)
    wait_for_orphans(spec.scratch_folder, GRACE_SECONDS)  # of an agent that was killed
    assert is_struck and (end.plan is None or plan.fired(tmp_path / "plan")), read_log(spec)
    require_recorded(end.cause, end.outcome, spec, store)
    assert processes_mentioning(str(spec.scratch_folder)) == []


def require_recorded(cause: str, outcome: str | None, spec: SegmentSpec, store: LocalStore) -> None:
    found = find_outcome(store, spec.run, spec.fence)
    recorded = describe_cause(found, describe_rank_ends(spec.scratch_folder))
    assert matches(cause, recorded), f"{recorded}\n{read_log(spec)}"
    if outcome is not None:
        assert found is not None and found.outcome == outcome


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


@pytest.mark.slow
def test_a_run_whose_outcome_the_store_does_not_take_is_settled_by_what_its_rank_kept(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    """Without a command in `unit/tasks/recovery/test_settle.py`."""
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "kept", tmp_path / "store", source)
    folders = {"store": tmp_path / "store", "scratch": tmp_path / "scratch"}
    runner = Runner(configuration, {"run": "kept", **folders}, prefect_server)
    with NOT_TAKEN.injected(runner, tmp_path / "faults"):
        ran = runner.call("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(read_fired(tmp_path / "faults")) > 0
    status = runner.status()
    assert [segment["outcome"] for segment in status["segments"]] == ["completed"]
    assert (status["state"], status["steps_lost_total"]) == ("completed", 0)


# Of a key that is not known the server's answer has another word, which `unit/storage/test_s3_errors.py` reads.
@pytest.mark.parametrize("name", [pytest.param("AWS_ACCESS_KEY_ID", marks=pytest.mark.slow), "AWS_SECRET_ACCESS_KEY"])
def test_ranks_whose_key_a_bucket_refuses_say_so_and_their_outcome_is_put_once_the_key_is_right(
    name: str, ceph_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, ceph_endpoint)
    store = open_s3_store(tmp_path)
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment", ranks=2)
    spec = spec.model_copy(update={"cache": str(tmp_path / "cache"), "store_seconds": 0.5})
    with monkeypatch.context() as patch:
        patch.setenv(name, "wrong")
        with launch(spec, GRACE_SECONDS) as ranks:
            while ranks.is_running(POLL_SECONDS):
                pass
    assert find_outcome(store, spec.run, spec.fence) is None
    words = describe_cause(None, describe_rank_ends(spec.scratch_folder))
    assert matches(r"^no outcome recorded\. Rank \d \(process \d+\) was refused by the store", words), read_log(spec)
    launched = Launch(store=store.address, run=spec.run, fence=spec.fence, supervisor=this_process())
    outcome = settle_outcome(store, spec.scratch_folder, launched)
    assert outcome is not None and outcome.outcome == "failed"
    assert matches(r"^rank \d: StoreRefusedError: .* The server does not accept the credentials\.", outcome.cause)


SUPERVISOR = """
import sys
from pathlib import Path
from tasks.cluster.ranks import Ranks
from training.spec import SegmentSpec

with Ranks(SegmentSpec.model_validate_json(Path(sys.argv[1]).read_bytes()), 30) as ranks:
    while ranks.is_running(0.2):
        pass
"""


def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_from_one_that_a_person_kills(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=20, ranks=2)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    plan = FaultPlan().having(StepFault("take_memory", None, AT, times=2))
    environment = os.environ | plan.environment(tmp_path / "plan", [tmp_path / "store", tmp_path / "segment"])
    with group_with_memory(MEMORY) as members:
        enter = f'echo $$ > {members} && exec "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-c", SUPERVISOR, str(tmp_path / "spec.json")]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    assert plan.fired(tmp_path / "plan"), read_log(spec)
    words = r"Rank 1 \(process \d+\) was killed with SIGKILL: by the kernel, since the machine, or this "
    require_recorded(words, None, spec, store)


@pytest.mark.slow
def test_ranks_whose_supervisor_is_killed_save_and_leave_and_so_does_their_agent(tmp_path: Path) -> None:
    """Of a whole run in `faults/test_interruptions.py`."""
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    spec = make_spec(store, dataset, tmp_path / "segment", steps=1_000_000, ranks=2)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path / "spec.json")]
    with subprocess.Popen(command, cwd=ROOT) as supervisor:
        assert wait_until(lambda: spec.progress_file.exists() and spec.progress_file.read_text() != "", supervisor)
        holders = find_holders(spec.scratch_folder)
        assert [holder.rank for holder in holders] == [0, 1, None]
        supervisor.kill()
    assert wait_for_orphans(spec.scratch_folder, 60) > 0
    require_recorded(ALONE, "preempted", spec, store)
    assert find_holders(spec.scratch_folder) == []
    assert processes_mentioning(str(spec.scratch_folder)) == []
