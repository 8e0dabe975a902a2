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
from training.batches.ahead import AssemblingAhead
from training.batches.blocks import Blocks
from training.batches.source import BatchSource, open_source
from training.specification import SegmentSpec
from training.world import World

ROWS = 700
NUM_STEPS = 40
RANK = World(1, 3, 1, 3)  # any will do: the process works for all ranks of the machine
LONGEST_SECONDS = 60
DIES = """
import os, signal, sys
from training.batches.ahead import AssemblingAhead
print(AssemblingAhead()._process.pid, flush=True)
sys.stdin.readline()
{last_words}
"""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


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


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each block that this process assembles, its number of steps."""
    found: list[int] = []
    assemble = Blocks._assemble

    def assemble_and_tell(blocks: Blocks, positions: list[int]) -> object:
        found.append(len(positions))
        return assemble(blocks, positions)

    monkeypatch.setattr(Blocks, "_assemble", assemble_and_tell)
    return found


def open_for(spec: SegmentSpec, ahead: AssemblingAhead | None) -> BatchSource:
    store = spec.open_store()
    return open_source(spec, RANK, store, load_dataset(store, spec.dataset_digest), pin=False, ahead=ahead)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_block(source: BatchSource, step: int) -> None:
    """Until the block that begins at `step` is there for all ranks."""
    blocks = source._blocks
    wait_until(blocks._shared._path(blocks._key(blocks._positions(step))).exists)


def num_blocks(spec: SegmentSpec) -> int:
    return len(list(spec.samples_folder.glob("train-block-*")))


def samples_of(source: BatchSource, steps: range) -> list[list[bytes]]:
    return [[leaf.ids for leaf in source.batch(step).leaves] for step in steps]


def samples_alone(spec: SegmentSpec, folder: Path) -> list[list[bytes]]:
    """As a machine without that process has them."""
    return samples_of(open_for(spec.model_copy(update={"scratch": str(folder)}), None), range(NUM_STEPS))


def test_no_rank_assembles_a_block_that_the_process_has_time_for(
    spec: SegmentSpec, ahead: AssemblingAhead, made: list[int], tmp_path: Path
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
    first = open_for(spec.model_copy(update={"train": spec.train.model_copy(update={"steps": 1})}), ahead)
    wait_until(lambda: num_blocks(spec) == 1)
    first.batch(0)
    ahead.assemble(0)  # it has come as far as this when it has read this
    time.sleep(0.5)
    assert num_blocks(spec) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_run_goes_on_without_the_process(
    spec: SegmentSpec, ahead: AssemblingAhead, tmp_path: Path, how: signal.Signals
) -> None:
    source = open_for(spec, ahead)
    found = samples_of(source, range(1))
    assert source._block is not None
    wait_for_block(source, source._block.end_step)
    time.sleep(0.2)  # while it assembles, ranks wait for it
    ahead._process.send_signal(how)
    for _ in range(20_000):  # more than a pipe holds
        ahead.assemble(NUM_STEPS)
    found += samples_of(source, range(1, NUM_STEPS))
    assert found == samples_alone(spec, tmp_path / "alone")


def test_what_is_damaged_is_told_by_the_rank_alone(
    spec: SegmentSpec, store: LocalStore, dataset: DatasetManifest, capfd: pytest.CaptureFixture[str]
) -> None:
    path = store.fetch(f"datasets/{dataset.digest}/{dataset.splits['train'].shards[0].name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    ahead = AssemblingAhead()
    source = open_for(spec, ahead)
    with pytest.raises(CorruptObjectError):
        samples_of(source, range(NUM_STEPS))
    time.sleep(1)
    assert ahead._process.poll() is None  # what failed once may succeed later: a bucket that cannot be reached
    ahead.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("last_words", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit(0)"])
def test_the_process_ends_with_the_rank_however_that_ends(last_words: str) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", DIES.format(last_words=last_words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert rank.stdin is not None and rank.stdout is not None
    ahead = psutil.Process(int(rank.stdout.readline()))
    assert ahead.is_running()
    rank.communicate("\n", timeout=LONGEST_SECONDS)
    wait_until(lambda: not ahead.is_running() or ahead.status() == psutil.STATUS_ZOMBIE)


def test_closing_ends_it_at_once(ahead: AssemblingAhead) -> None:
    ahead.close()
    assert ahead._process.poll() is not None
