"""`make bench-checkpoint`: what a save costs training, how soon it is safe, and how soon a run is back from it.

One rank, one thread of computing, the other core free, as cores are beside a GPU. Training is the product's own, with a
state of 1.49 GB (124 M parameters with Adam, fp32); the peers are `torch.save` and `torch.distributed.checkpoint`,
saving the same tensors to the same disk. What is compared is measured one right after the other, in rounds of
alternating order; a ratio is the median of the rounds' ratios. The last line is for machines: `name=value` pairs.
"""

import argparse
import functools
import gc
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from storage.checkpoints.checkpoints import find_complete_checkpoints, verify_checkpoint
from storage.datasets import DatasetManifest, load_dataset
from storage.objects.local_store import LocalStore
from tasks.running.following import ReportFollower
from tasks.running.ranks import POLL_SECONDS
from tests.benchmarks.other_processes import another_process, compute, write_again_and_again
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import RankProcesses
from tests.helpers.training import launch
from training.batches.blocks import Blocks
from training.batches.leaves import leaf_cut
from training.batches.source import BatchSource
from training.batches.tensors import Leaf
from training.building import make_model, make_objective
from training.configuration import CheckpointConfig, DivergenceConfig, ModelConfig, TrainConfig, ValidationConfig
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.model.precision import choose_precision
from training.process_group import join_process_group
from training.saving.checkpointing import Checkpointer
from training.saving.restoring import Restorer
from training.saving.state_tensors import StateTensors
from training.saving.writer import CheckpointWriter, SavePart
from training.specification import ResumePoint, SegmentSpec
from training.trainer import Trainer
from training.watching.curve import LossCurve
from training.watching.reporter import Reporter
from training.watching.training_state import TrainingState
from training.world import World

# 124 M parameters with the small vocabulary of the data.
MODEL = ModelConfig(width=768, layers=17, heads=12, feedforward=3200)
SMALL_MODEL = ModelConfig(width=128, layers=2, heads=4, feedforward=512)
ROUNDS = 7
# Of what has a wide margin, or no limit.
PEER_ROUNDS = 3
STEPS_BESIDE = 3
STEPS_AROUND = 2
BATCH_SIZE, LEAVES = 8, 1
STALL, DURABLE, VERIFIED = "exposed stall", "durable", "durable, and hashed again"
MEMORY_COPY, PLAIN_COPY = "memory copy", "write, sync, read and hash"
BESIDE_THREAD, ALONE = "step beside a thread that saves", " (alone)"
BESIDE_PROCESS = "step beside a process that saves"
BESIDE_COMPUTING = "step beside a process that only computes"
RESTORE, READING = "restore, files in memory", "reading, files in memory"
RESTORE_ON_DISK, READING_ON_DISK = "restore, files on disk", "reading, files on disk"
ASYNC = "stall of dcp.async_save"
PREEMPTION = "SIGTERM to a complete checkpoint"
# What -> against what, measured right beside it.
REFERENCES = {
    STALL: MEMORY_COPY,
    VERIFIED: PLAIN_COPY,
    **{beside: beside + ALONE for beside in (BESIDE_THREAD, BESIDE_PROCESS, BESIDE_COMPUTING)},
    RESTORE: READING,
    RESTORE_ON_DISK: READING_ON_DISK,
}
DEFAULT_CADENCE_SECONDS = CheckpointConfig().every_seconds


def main() -> None:
    """Measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--small", action="store_true", help="a model of half a million parameters: to try it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = _measure(Path(folder), SMALL_MODEL if options.small else MODEL, options.rounds)
    console = Console(width=140, highlight=False)
    console.print(_table(measured))
    print(" ".join(f"{name}={value:.3f}" for name, value in _ratios(measured).items()))


def _measure(folder: Path, model: ModelConfig, rounds: int) -> dict[str, Any]:
    store = LocalStore(folder / "store")
    dataset = publish_small_dataset(store, folder / "work", rows=100)
    spec = SegmentSpec(
        work="train", run="bench", store=store.address, scratch=str(folder / "scratch"), fence=1, resume=None,
        dataset_digest=dataset.digest, model=model, validation=ValidationConfig(), checkpoint=CheckpointConfig(),
        train=TrainConfig(batch_size=BATCH_SIZE, leaves=LEAVES, ranks=1, steps=100_000),
    )  # fmt: skip
    spec.scratch_folder.mkdir()
    ranks = RankProcesses(spec, functools.partial(_work, rounds=rounds))
    ranks.start()
    codes = ranks.join(timeout=3600)
    if any(codes):
        raise SystemExit((spec.scratch_folder / "ranks.log").read_text())
    measured: dict[str, Any] = json.loads((spec.scratch_folder / "measured.json").read_text())
    return measured | {PREEMPTION: [_measure_preemption(spec.model_copy(update={"fence": 2}))]}


def _measure_preemption(spec: SegmentSpec) -> float:
    """Seconds from SIGTERM to the checkpoint's index, of ranks in the middle of training under torchrun."""
    reports = ReportFollower(spec.progress_file)
    reports.read()
    asked_at: float | None = None
    with launch(spec, grace_seconds=300) as ranks:
        while ranks.is_running(POLL_SECONDS):
            for report in reports.read():
                if report.step >= 2 and asked_at is None:
                    asked_at = time.perf_counter()
                    ranks.stop()
                if report.checkpoint is not None and asked_at is not None:
                    return time.perf_counter() - asked_at
    raise SystemExit((spec.scratch_folder / "ranks.log").read_text())


def _work(spec: SegmentSpec, world: World, rounds: int) -> object:
    bench = _Bench(spec, world)
    for number in range(rounds):
        bench.measure_round(number)
    bench.measure_restore(rounds)
    (spec.scratch_folder / "measured.json").write_text(json.dumps({**bench.seconds, "bytes": bench.num_bytes}))
    return bench


class _Bench:
    """One rank's trainer, its checkpointer, and its peers."""

    def __init__(self, spec: SegmentSpec, world: World) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._spec, self._world = spec, world
        self._precision = choose_precision(spec.train, world)
        join_process_group(spec.train, self._precision, world)
        self._store = spec.open_store()
        self._dataset = load_dataset(self._store, spec.dataset_digest)
        self._trainer = self._make_trainer()
        self._state = TrainingState(LossCurve(world, 10, DivergenceConfig()))
        reader = SampleReader(self._store, self._dataset, "train", spec.samples_folder)
        self._checkpointer = Checkpointer(
            spec, world, self._store, self._trainer, self._state,
            Reporter(spec.progress_file, world, BATCH_SIZE), reader.num_rows,
        )  # fmt: skip
        order = SampleOrder(reader.num_rows, reader.group_rows, 0)
        source = BatchSource(
            Blocks(reader, order, leaf_cut(spec.model, spec.train), BATCH_SIZE, LEAVES, world), pin=False
        )
        self._leaves: list[Leaf] = source.batch(0).leaves
        self._peers = spec.scratch_folder / "peers"
        kept = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stagers = [
            (AsyncCheckpointerType.THREAD, None),
            (AsyncCheckpointerType.PROCESS, None),
            (AsyncCheckpointerType.THREAD, DefaultStager(kept)),
            (AsyncCheckpointerType.PROCESS, DefaultStager(kept)),
        ]
        for _ in range(3):  # the optimizer has its state, the buffers are allocated
            self._step()
        self.num_bytes = sum(file.num_bytes for file in StateTensors(self._trainer).files)
        # Not zeros: those would be one page of memory.
        self._flat = torch.ones(self.num_bytes, dtype=torch.uint8)
        self._copy = torch.ones_like(self._flat)

    def measure_round(self, number: int) -> None:
        """All who save, in turn; each save is over before the next begins."""
        copying: list[Callable[[], None]] = [
            lambda: self._time(MEMORY_COPY, lambda: self._copy.copy_(self._flat)),
            self._measure_own_save,
            lambda: self._time(PLAIN_COPY, self._copy_and_hash),
        ]
        for measure in copying[:: 1 if number % 2 else -1]:
            measure()
        self._measure_steps(BESIDE_THREAD, self._writing_thread)
        if number < PEER_ROUNDS:
            place = (self._store.address, str(self._peers), self.num_bytes)
            self._measure_steps(BESIDE_PROCESS, lambda: another_process(write_again_and_again, *place))
            self._measure_steps(BESIDE_COMPUTING, lambda: another_process(compute))
            self._measure_peers()
        shutil.rmtree(self._peers, ignore_errors=True)

    def measure_restore(self, rounds: int) -> None:
        """From the newest checkpoint into a new model, against reading its files."""
        self._checkpointer.save_now()
        found = find_complete_checkpoints(self._store, self._spec.run, self._spec.fence)[0]
        point = ResumePoint(path=found.path, digest=found.digest, step=found.index.step)
        paths = [self._store.fetch(f"{found.path}/{name}") for name in found.index.tensor_files]
        trainer = self._make_trainer()
        restorer = Restorer(self._store, self._world, trainer)
        for number in range(rounds):
            for restore, reading in ((RESTORE, READING), (RESTORE_ON_DISK, READING_ON_DISK)):
                both: list[tuple[str, Callable[[], object]]] = [
                    (reading, lambda: _read_all(paths)),
                    (restore, lambda: restorer.take_over(restorer.read(point))),
                ]
                for name, work in both[:: 1 if number % 2 else -1]:
                    trainer.optimization.optimizer.state.clear()
                    gc.collect()
                    (_let_go_of if reading == READING_ON_DISK else _read_and_forget)(paths)
                    self._time(name, work)
            self._time("reading and forgetting, files in memory", lambda: _read_and_forget(paths))
        self._require_equal(trainer)

    def _measure_own_save(self) -> None:
        """One save while nothing else is done: its stall, and when it is durable, and verified."""
        self._step()
        began = time.perf_counter()
        self._checkpointer.begin()
        self._note(STALL, time.perf_counter() - began)
        while not self._checkpointer.is_idle:
            time.sleep(0.001)  # a step boundary, at which alone a save goes on, is what we make of it here
            self._checkpointer.advance(self._checkpointer.writing)
        self._note(DURABLE, time.perf_counter() - began)
        found = find_complete_checkpoints(self._store, self._spec.run, self._spec.fence)[0]
        verify_checkpoint(self._store, found.path, found.digest)
        self._note(VERIFIED, time.perf_counter() - began)

    def _copy_and_hash(self) -> None:
        """What a careful user would do by hand."""
        path = self._fresh("plain")
        with path.open("wb") as file:
            file.write(self._flat.numpy().data)
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")

    def _measure_steps(self, name: str, company: Callable[[], AbstractContextManager[None]]) -> None:
        """The mean of steps beside somebody who never pauses, and of those before and after."""
        alone = [self._step() for _ in range(STEPS_AROUND)]
        with company():
            beside = [self._step() for _ in range(STEPS_BESIDE)]
        alone += [self._step() for _ in range(STEPS_AROUND)]
        self._note(name, statistics.mean(beside))
        self._note(name + ALONE, statistics.mean(alone))

    @contextmanager
    def _writing_thread(self) -> Iterator[None]:
        """The product's own, writing what the last save copied, one time after the other."""
        writer = CheckpointWriter(self._store, self._spec.scratch_folder)
        files = self._checkpointer._snapshot.own
        is_writing, is_over = threading.Event(), threading.Event()

        def write(given_up: threading.Event) -> None:
            while not is_over.is_set():
                is_writing.set()
                writer.write(SavePart("peer", files), given_up)

        writer.start(write)
        is_writing.wait()
        try:
            yield
        finally:
            is_over.set()
        assert writer.ends_well()
        for file in files:
            self._store.delete(f"peer/{file.layout.name}")

    def _measure_peers(self) -> None:
        self._time("stall of torch.save", lambda: torch.save(self._tensors(), self._fresh("torch.pt")))
        self._time("stall of dcp.save", lambda: save(self._tensors(), checkpoint_id=self._fresh("dcp")))
        for kind, stager in self._stagers:
            pending: list[Any] = []
            # Until training may go on; then it is waited for, beside nothing.
            self._time(
                f"{ASYNC} ({kind.value}, {'own buffers kept' if stager else 'default'})",
                lambda kind=kind, stager=stager, pending=pending: pending.append(  # type: ignore[misc]
                    async_save(
                        self._tensors(),
                        checkpoint_id=self._fresh("async"),
                        async_checkpointer_type=kind,
                        async_stager=stager,
                    )
                ),
            )
            getattr(pending[0], "upload_completion", pending[0]).result()

    def _step(self) -> float:
        """One step as the training loop takes it; its seconds."""
        began = time.perf_counter()
        self._checkpointer.advance(self._checkpointer.writing)
        self._trainer.take_step(self._state.step, self._leaves)
        self._state.step += 1
        return time.perf_counter() - began

    def _time(self, name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self._note(name, time.perf_counter() - began)

    def _note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def _tensors(self) -> dict[str, Tensor]:
        model = {f"model.{name}": tensor for name, tensor in self._trainer.model.state_dict().items()}
        return model | self._trainer.optimization.tensors()

    def _fresh(self, name: str) -> Path:
        """A path below the peers' folder with nothing there."""
        path = self._peers / name
        shutil.rmtree(self._peers, ignore_errors=True)
        self._peers.mkdir(parents=True)
        return path

    def _make_trainer(self) -> Trainer:
        dataset: DatasetManifest = self._dataset
        model = make_model(self._spec, dataset, self._precision)
        objective = make_objective(self._spec, dataset, self._precision)
        return Trainer(model, objective, self._spec.train, self._precision, self._world)

    def _require_equal(self, restored: Trainer) -> None:
        live = self._trainer.model.state_dict()
        assert all(live[name].equal(tensor) for name, tensor in restored.model.state_dict().items())


def _read_all(paths: list[Path]) -> None:
    """Into memory that holds them all, as a restore must: getting that memory takes as long as reading."""
    held = []
    for path in paths:
        held.append(torch.empty(path.stat().st_size, dtype=torch.uint8))
        _read_into(held[-1], path)


def _read_and_forget(paths: list[Path]) -> None:
    """Into the same memory again and again, which costs less and leaves nothing to go on with."""
    data = torch.empty(max(path.stat().st_size for path in paths), dtype=torch.uint8)
    for path in paths:
        _read_into(data, path)


def _read_into(data: Tensor, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        file.readinto(data.numpy().data)


def _let_go_of(paths: list[Path]) -> None:
    """Take the files out of the page cache, as a machine that was switched off has done."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _ratio(measured: dict[str, Any], name: str) -> float:
    """The median of the rounds' ratios to the reference."""
    pairs = zip(measured[name], measured[REFERENCES[name]], strict=True)
    return float(statistics.median(value / reference for value, reference in pairs))


def _ratios(measured: dict[str, Any]) -> dict[str, float]:
    median = {name: statistics.median(values) for name, values in measured.items() if name != "bytes"}
    slowdown = _ratio(measured, BESIDE_THREAD)
    lost = median[STALL] + max(0.0, slowdown - 1) * median[DURABLE]
    return {
        "stall_over_memcpy": _ratio(measured, STALL),
        "stall_over_dcp_async": median[STALL] / min(value for name, value in median.items() if name.startswith(ASYNC)),
        "step_slowdown": slowdown,
        "step_slowdown_by_computing": _ratio(measured, BESIDE_COMPUTING),
        "overhead": lost / DEFAULT_CADENCE_SECONDS,
        "verified_over_copy_and_hash": _ratio(measured, VERIFIED),
        "restore_over_read": _ratio(measured, RESTORE_ON_DISK),
        "restore_over_read_in_memory": _ratio(measured, RESTORE),
        "sigterm_to_complete_seconds": median[PREEMPTION],
    }


def _table(measured: dict[str, Any]) -> Table:
    gigabytes = measured["bytes"] / 1e9
    columns = ("what", "median s", "best s", "GB/s", "median ratio", "to")
    table = Table(*columns, title=f"A state of {gigabytes:.2f} GB", box=None)
    for name, values in measured.items():
        if name != "bytes":
            median = statistics.median(values)
            rate = "" if name.startswith("step") else f"{gigabytes / median:.2f}"
            ratio = (f"{_ratio(measured, name):.2f}", REFERENCES[name]) if name in REFERENCES else ()
            table.add_row(name, f"{median:.3f}", f"{min(values):.3f}", rate, *ratio)
    return table


if __name__ == "__main__":
    main()
