"""The process that assembles ahead: it has the next block ready, is never needed, and never outlives its rank."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from storage.datasets import DatasetManifest, load_dataset
from storage.errors import CorruptObjectError
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.batches.ahead import MOST_STARTS, TITLE, AssemblingAhead
from training.batches.source import BatchSource, open_source
from training.models.source import microbatch_cut
from training.spec import SegmentSpec
from training.world import World

ROWS = 700
NUM_STEPS = 40
RANK = World(0, 3, 0, 3)  # the first of its machine: the process works for all ranks there
LONGEST_SECONDS = 60
DIES = """
import os, signal, sys
from training.batches.ahead import AssemblingAhead
signal.signal(signal.SIGTERM, lambda *_: None)
print(AssemblingAhead(can_fork={can_fork}).pid, flush=True)
sys.stdin.readline()
{last_words}
"""


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=ROWS)


@pytest.fixture
def spec(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> SegmentSpec:
    return make_spec(store, dataset, tmp_path / "scratch", steps=NUM_STEPS)


@pytest.fixture
def ahead() -> Iterator[AssemblingAhead]:
    process = AssemblingAhead()
    yield process
    process.close()


def open_for(spec: SegmentSpec, ahead: AssemblingAhead | None, world: World = RANK) -> BatchSource:
    store = spec.open_store()
    dataset, cut = load_dataset(store, spec.dataset_digest), microbatch_cut(spec.model, spec.train)
    return open_source(spec, world, store, dataset, cut, pin=False, ahead=ahead)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # another process makes the file, and does not say when


def wait_for_block(source: BatchSource, step: int) -> None:
    """Until the block that begins at `step` is there for all ranks."""
    blocks = source._blocks
    wait_until(blocks._shared._path(f"{blocks._name}-{step}").exists)
    with blocks._shared._locked():
        pass  # whoever made it does nothing more with it


def samples_of(source: BatchSource, steps: range) -> list[list[bytes]]:
    return [[microbatch.ids for microbatch in source.batch(step).microbatches] for step in steps]


def samples_alone(spec: SegmentSpec, folder: Path) -> list[list[bytes]]:
    """As a machine without that process has them."""
    return samples_of(open_for(spec.model_copy(update={"scratch": str(folder)}), None), range(NUM_STEPS))


def test_no_rank_assembles_a_block_that_the_process_has_time_for(
    spec: SegmentSpec, ahead: AssemblingAhead, made: list[list[int]], tmp_path: Path
) -> None:
    source = open_for(spec, ahead)
    found: list[list[bytes]] = []
    while len(found) < NUM_STEPS:
        wait_for_block(source, len(found))  # the first one too, before a rank asks for it
        source.batch(len(found))
        assert source._block is not None
        found += samples_of(source, range(len(found), min(source._block.end_step, NUM_STEPS)))
    assert made == []
    assert found == samples_alone(spec, tmp_path / "alone")
    assert len(made) > 2


def test_nothing_is_assembled_beyond_the_last_step(spec: SegmentSpec, ahead: AssemblingAhead) -> None:
    source = open_for(spec.model_copy(update={"train": spec.train.model_copy(update={"steps": 1})}), ahead)
    wait_for_block(source, 0)
    source.batch(0)
    let_it_end(ahead)
    assert len(list(spec.samples_folder.glob("train-block-*"))) == 1


def test_when_the_ranks_are_others_it_assembles_for_those(
    spec: SegmentSpec, ahead: AssemblingAhead, made: list[list[int]], tmp_path: Path
) -> None:
    world = World(0, 3, 0, 3)
    source = open_for(spec, ahead, world)
    wait_for_block(source, 0)
    world.enter([0, 2], None)
    source.deal_anew(5)
    wait_for_block(source, 5)
    found = samples_of(source, range(5, 10))
    assert made == []
    own = World(0, 2, 0, 2)
    alone = open_for(spec.model_copy(update={"scratch": str(tmp_path / "alone")}), None, own)
    assert found == samples_of(alone, range(5, 10))


def test_a_rank_that_is_the_first_for_longer_than_a_block_starts_one_and_ends_it_when_it_is_not(
    spec: SegmentSpec, tmp_path: Path
) -> None:
    world, ahead = World(1, 3, 1, 3), AssemblingAhead(is_first=False)
    source = open_for(spec, ahead, world)
    source.batch(0)
    assert ahead.pid is None
    world.enter([1, 2], None)
    source.deal_anew(5)
    found = samples_of(source, range(5, 6))
    assert ahead.pid is None and source._block is not None  # another one may come at once, with a process of its own
    step = source._block.end_step
    found += samples_of(source, range(step, step + 1))
    assert ahead.pid is not None
    assert source._block is not None
    wait_for_block(source, source._block.end_step)
    alone = open_for(spec.model_copy(update={"scratch": str(tmp_path / "alone")}), None, World(0, 2, 0, 2))
    assert found == samples_of(alone, range(5, 6)) + samples_of(alone, range(step, step + 1))
    world.enter([0, 1, 2], None)
    source.deal_anew(step + 1)
    assert ahead.pid is None


def let_it_end(ahead: AssemblingAhead) -> None:
    """It does what it was told, finds that nothing more comes, and leaves."""
    assert ahead.pid is not None
    ahead._close_messages()
    ended = os.waitid(os.P_PID, ahead.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_run_goes_on_without_the_process(
    spec: SegmentSpec, ahead: AssemblingAhead, tmp_path: Path, how: signal.Signals
) -> None:
    source = open_for(spec, ahead)
    found = samples_of(source, range(1))
    assert source._block is not None
    wait_for_block(source, source._block.end_step)  # were it stopped while it assembles, ranks would wait for it
    assert ahead.pid is not None
    os.kill(ahead.pid, how)
    for _ in range(20_000):  # more than a pipe holds
        ahead.assemble(NUM_STEPS)
    found += samples_of(source, range(1, NUM_STEPS))
    assert found == samples_alone(spec, tmp_path / "alone")


def test_when_it_is_gone_another_one_goes_on_and_not_without_end(
    spec: SegmentSpec, ahead: AssemblingAhead, made: list[list[int]]
) -> None:
    source = open_for(spec, ahead)
    step = 0
    for _ in range(MOST_STARTS - 1):
        wait_for_block(source, step)
        gone = ahead.pid
        assert gone is not None
        os.kill(gone, signal.SIGKILL)
        os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
        source.batch(step)  # begins a block, and tells of the next one
        assert source._block is not None and ahead.pid not in (None, gone)
        step = source._block.end_step
    wait_for_block(source, step)
    assert made == []
    ahead.close()
    source.batch(step)
    assert ahead.pid is None


def test_what_is_damaged_is_told_by_the_rank_alone_and_what_is_mended_is_assembled(
    spec: SegmentSpec, store: LocalStore, dataset: DatasetManifest, capfd: pytest.CaptureFixture[str]
) -> None:
    path = store.fetch(f"datasets/{dataset.digest}/{dataset.splits['train'].shards[0].name}")
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 3] ^= 4
    path.write_bytes(damaged)
    ahead = AssemblingAhead()
    source = open_for(spec, ahead)
    with pytest.raises(CorruptObjectError):
        samples_of(source, range(NUM_STEPS))
    path.write_bytes(content)
    ahead.assemble(NUM_STEPS - 1)
    wait_for_block(source, NUM_STEPS - 1)
    let_it_end(ahead)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("can_fork", [False, True])
@pytest.mark.parametrize(
    "last_words",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        pytest.param("os._exit(0)", marks=pytest.mark.slow),
        pytest.param("sys.exit(0)", marks=pytest.mark.slow),
    ],
)
def test_the_process_ends_with_the_rank_however_that_ends(last_words: str, can_fork: bool) -> None:
    rank, ahead = start_a_rank(can_fork, last_words)
    rank.communicate("\n", timeout=LONGEST_SECONDS)
    wait_until(lambda: not ahead.is_running() or ahead.status() == psutil.STATUS_ZOMBIE)


def test_one_that_is_forked_has_its_own_title_and_takes_no_signal_as_the_rank_does() -> None:
    rank, ahead = start_a_rank(True, "")
    wait_until(lambda: ahead.cmdline()[0].startswith(TITLE))
    ahead.terminate()
    wait_until(lambda: not ahead.is_running() or ahead.status() == psutil.STATUS_ZOMBIE)
    assert rank.poll() is None
    rank.communicate("\n", timeout=LONGEST_SECONDS)


def start_a_rank(can_fork: bool, last_words: str) -> tuple["subprocess.Popen[str]", psutil.Process]:
    """A process that notes SIGTERM, as a rank does, and says the last words when it is sent a line; and who assembles
    for it."""
    rank = subprocess.Popen(
        [sys.executable, "-c", DIES.format(can_fork=can_fork, last_words=last_words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert rank.stdout is not None
    return rank, psutil.Process(int(rank.stdout.readline()))


def test_closing_ends_it_at_once(ahead: AssemblingAhead) -> None:
    pid = ahead.pid
    ahead.close()
    assert pid is not None and not psutil.pid_exists(pid)
