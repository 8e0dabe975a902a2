"""`make bench-checkpoint`: what a save costs training, how soon it is safe, and how soon a run is back from it.

One rank, one thread of computing, the other core free, as cores are beside a GPU. Training is the product's own, with a
state of 1.49 GB (124 M parameters with Adam, fp32); the peers are `torch.save` and `torch.distributed.checkpoint`,
saving the same tensors to the same disk. All take turns in rounds, so that a noisy machine disturbs all alike; ratios
are of the best times. The last line is for machines: `name=value` pairs.
"""

import argparse
import functools
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from storage.checkpoints import find_complete_checkpoints, put_checkpoint_file, verify_checkpoint
from storage.datasets import DatasetManifest, load_dataset
from storage.local_store import LocalStore
from storage.tensor_layout import FILE_BYTES
from tasks.following import ReportFollower
from tasks.ranks import POLL_SECONDS
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import RankProcesses
from tests.helpers.training import launch
from training.batches import BatchSource, Leaf
from training.checkpointing import Checkpointer
from training.configuration import CheckpointConfig, DivergenceConfig, ModelConfig, TrainConfig, ValidationConfig
from training.curve import LossCurve
from training.leaves import leaf_cut
from training.order import SampleOrder
from training.precision import choose_precision
from training.progress import Progress
from training.restoring import Restorer
from training.run_progress import RunProgress
from training.samples import SampleReader
from training.segment import join_process_group, make_model, make_objective
from training.specification import ResumePoint, SegmentSpec
from training.state_tensors import State
from training.trainer import Trainer
from training.world import World

# 124 M parameters with the small vocabulary of the data.
MODEL = ModelConfig(width=768, layers=17, heads=12, feedforward=3200)
SMALL_MODEL = ModelConfig(width=128, layers=2, heads=4, feedforward=512)
ROUNDS = 5
STEPS_BESIDE = 4
BATCH_SIZE, LEAVES = 8, 1
PREEMPTION = "SIGTERM to a complete checkpoint"
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
    console = Console(width=110, highlight=False)
    for table in _tables(measured):
        console.print(table)
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
    for _ in range(rounds):
        bench.measure_round()
    bench.measure_restore(rounds)
    (spec.scratch_folder / "measured.json").write_text(json.dumps({**bench.seconds, "bytes": bench.num_bytes}))
    return bench


class _Bench:
    """One rank's trainer, its checkpointer, and its peers."""

    def __init__(self, spec: SegmentSpec, world: World) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._spec, self._world = spec, world
        self._precision = choose_precision(spec.train, world)
        join_process_group(spec.train, self._precision)
        self._store = spec.open_store()
        self._dataset = load_dataset(self._store, spec.dataset_digest)
        self._trainer = self._make_trainer()
        self._state = RunProgress(LossCurve(world, 10, DivergenceConfig()))
        reader = SampleReader(self._store, self._dataset, "train")
        self._checkpointer = Checkpointer(
            spec, world, self._store, self._trainer, self._state,
            Progress(spec.progress_file, world, BATCH_SIZE), reader.num_rows,
        )  # fmt: skip
        order = SampleOrder(reader.num_rows, reader.group_rows, 0)
        source = BatchSource(reader, order, leaf_cut(spec.model), BATCH_SIZE, LEAVES, world, pin=False)
        self._leaves: list[Leaf] = source.leaves(0)
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
        self.num_bytes = sum(file.num_bytes for file in State(self._trainer).files)
        self._flat = torch.zeros(self.num_bytes, dtype=torch.uint8)
        self._copy = torch.zeros_like(self._flat)

    def measure_round(self) -> None:
        """All who save, in turn; each save is over before the next begins."""
        self._time("memory copy", lambda: self._copy.copy_(self._flat))
        self._measure_own_save()
        self._measure_steps_beside()
        self._measure_steps_beside_a_process()
        self._measure_plain_copy()
        self._time("torch.save, stall", lambda: torch.save(self._tensors(), self._fresh("torch.pt")))
        self._time("dcp.save, stall", lambda: save(self._tensors(), checkpoint_id=self._fresh("dcp")))
        for kind, stager in self._stagers:
            self._measure_dcp_async(kind, stager)
        shutil.rmtree(self._peers, ignore_errors=True)

    def measure_restore(self, rounds: int) -> None:
        """From the newest checkpoint into a new model, against reading its files."""
        self._checkpointer.save_now()
        found = find_complete_checkpoints(self._store, self._spec.run, self._spec.fence)[0]
        point = ResumePoint(path=found.path, digest=found.digest, step=found.index.step)
        paths = [self._store.fetch(f"{found.path}/{name}") for name in found.index.tensor_files]
        trainer = self._make_trainer()
        restorer = Restorer(self._store, self._world, trainer)
        for _ in range(rounds):
            for where in ("in memory", "on disk"):
                _let_go_of(paths if where == "on disk" else [])
                self._time(f"reading the bytes, {where}", lambda: _read_all(paths))
                trainer.optimization.optimizer.state.clear()
                gc.collect()
                _let_go_of(paths if where == "on disk" else [])
                self._time(f"restore, {where}", lambda: restorer.take_over(restorer.read(point)))
        self._require_equal(trainer)

    def _measure_own_save(self) -> None:
        """One save while nothing else is done: its stall, and when it is durable, and verified."""
        self._step()
        began = time.perf_counter()
        self._checkpointer.begin()
        self._note("stall", time.perf_counter() - began)
        self._until_idle(lambda: time.sleep(0.001))
        self._note("durable", time.perf_counter() - began)
        found = find_complete_checkpoints(self._store, self._spec.run, self._spec.fence)[0]
        verify_checkpoint(self._store, found.path, found.digest)
        self._note("durable and verified", time.perf_counter() - began)

    def _measure_steps_beside(self) -> None:
        """Steps while a save is written, and as many while none is."""
        self._step()
        self._checkpointer.begin()
        beside: list[float] = []
        self._until_idle(lambda: beside.append(self._step()))
        self.seconds.setdefault("step beside a save", []).extend(beside)
        self.seconds.setdefault("step", []).extend(self._step() for _ in range(max(len(beside), STEPS_BESIDE)))

    def _measure_steps_beside_a_process(self) -> None:
        """Steps while another process does what the thread does: is a thread in the way of Python's lock?"""
        context = multiprocessing.get_context("spawn")
        is_writing = context.Event()
        arguments = (self._store.address, str(self._peers), self.num_bytes, is_writing)
        writer = context.Process(target=_write_again_and_again, args=arguments)
        self._fresh("process")
        writer.start()
        is_writing.wait()
        for _ in range(STEPS_BESIDE):
            self._note("step beside a process that writes", self._step())
        writer.kill()
        writer.join()

    def _measure_plain_copy(self) -> None:
        def copy_and_hash() -> None:
            path = self._fresh("plain")
            with path.open("wb") as file:
                file.write(self._flat.numpy().data)
                file.flush()
                os.fsync(file.fileno())
            with path.open("rb") as file:
                hashlib.file_digest(file, "sha256")

        self._time("plain copy and hash", copy_and_hash)

    def _measure_dcp_async(self, kind: AsyncCheckpointerType, stager: DefaultStager | None) -> None:
        """Until training may go on; then it is waited for, beside nothing."""
        buffers = "own buffers kept" if stager else "default"
        pending: list[Any] = []
        self._time(
            f"dcp.async_save ({kind.value}, {buffers}), stall",
            lambda: pending.append(
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

    def _until_idle(self, work: Callable[[], object]) -> None:
        while True:
            self._checkpointer.advance(self._checkpointer.writing)
            if self._checkpointer.is_idle:
                return
            work()

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


def _write_again_and_again(store: str, folder: str, num_bytes: int, is_writing: Any) -> None:
    data = np.zeros(num_bytes, dtype=np.uint8)
    for number in itertools.count():
        is_writing.set()
        for start in range(0, num_bytes, FILE_BYTES):
            part = data[start : start + FILE_BYTES].data
            put_checkpoint_file(LocalStore(Path(store)), f"peer/{number}-{start}", part, Path(folder) / "part")
            LocalStore(Path(store)).delete(f"peer/{number}-{start}")


def _read_all(paths: list[Path]) -> None:
    """Into fresh memory, as a restore does."""
    for path in paths:
        data = torch.empty(path.stat().st_size, dtype=torch.uint8)
        with path.open("rb", buffering=0) as file:
            file.readinto(data.numpy().data)


def _let_go_of(paths: list[Path]) -> None:
    """Take the files out of the page cache, as a machine that was switched off has done."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _ratios(measured: dict[str, Any]) -> dict[str, float]:
    best = {name: min(values) for name, values in measured.items() if name != "bytes"}
    peers = [seconds for name, seconds in best.items() if name.startswith("dcp.async_save")]
    slowdown = best["step beside a save"] / best["step"]
    lost = best["stall"] + max(0.0, slowdown - 1) * best["durable"]
    return {
        "stall_over_memcpy": best["stall"] / best["memory copy"],
        "stall_over_dcp_async": best["stall"] / min(peers),
        "step_slowdown": slowdown,
        "overhead": lost / DEFAULT_CADENCE_SECONDS,
        "restore_over_read": best["restore, on disk"] / best["reading the bytes, on disk"],
        "restore_over_read_in_memory": best["restore, in memory"] / best["reading the bytes, in memory"],
        "sigterm_to_complete_seconds": best[PREEMPTION],
        "verified_over_copy_and_hash": best["durable and verified"] / best["plain copy and hash"],
    }


def _tables(measured: dict[str, Any]) -> list[Table]:
    gigabytes = measured["bytes"] / 1e9
    table = Table("what", "median s", "best s", "GB/s", title=f"A state of {gigabytes:.2f} GB", box=None)
    for name, values in measured.items():
        if name != "bytes":
            median = statistics.median(values)
            rate = "" if name.startswith("step") else f"{gigabytes / median:.2f}"
            table.add_row(name, f"{median:.3f}", f"{min(values):.3f}", rate)
    return [table]


if __name__ == "__main__":
    main()
