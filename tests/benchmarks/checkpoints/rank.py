"""One rank of `bench_checkpoint`: its trainer, its checkpointer, and its peers, in turn."""

import gc
import hashlib
import json
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.datasets import DatasetManifest, load_dataset
from tests.benchmarks.checkpoints.figures import (
    ALONE,
    ASYNC,
    BESIDE_COMPUTING,
    BESIDE_PROCESS,
    BESIDE_THREAD,
    DURABLE,
    MEMORY_COPY,
    PLAIN_COPY,
    READING,
    READING_ON_DISK,
    RESTORE,
    RESTORE_ON_DISK,
    STALL,
    VERIFIED,
)
from tests.benchmarks.checkpoints.reading import let_go_of, read_all, read_and_forget
from tests.benchmarks.other_processes import another_process, compute, write_again_and_again
from tests.helpers.runs import find_complete_checkpoints
from training.batches.blocks import Blocks
from training.batches.source import BatchSource
from training.batches.tensors import Microbatch
from training.building import make_trainer
from training.checkpointing.restoring import Restorer
from training.checkpointing.saves import Checkpointer
from training.checkpointing.state_tensors import StateTensors
from training.checkpointing.writer import CheckpointWriter, SavePart
from training.configuration import DivergenceConfig
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.metrics.curve import LossCurve
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.models.precision import choose_precision
from training.models.source import microbatch_cut
from training.process_group import join_process_group
from training.spec import ResumePoint, SegmentSpec
from training.trainer import Trainer
from training.world import World

# Of what has a wide margin, or no limit.
PEER_ROUNDS = 3
STEPS_BESIDE = 3
STEPS_AROUND = 2
BATCH_SIZE, MICROBATCHES = 8, 1


def work(spec: SegmentSpec, world: World, rounds: int) -> object:
    """Measure, and leave what was found in scratch."""
    bench = Bench(spec, world)
    for number in range(rounds):
        bench.measure_round(number)
    bench.measure_restore(rounds)
    (spec.scratch_folder / "measured.json").write_text(json.dumps({**bench.seconds, "bytes": bench.num_bytes}))
    return bench


class Bench:
    """One rank's trainer, its checkpointer, and its peers."""

    def __init__(self, spec: SegmentSpec, world: World) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._spec, self._world = spec, world
        self._precision = choose_precision(spec.train, world)
        join_process_group(spec.train, self._precision, world)
        self._store = spec.open_store()
        self._dataset = load_dataset(self._store, spec.dataset_digest)
        self._trainer = self._make_trainer()
        self._state = TrainingState(LossCurve(10, DivergenceConfig()))
        reader = SampleReader(self._store, self._dataset, "train", spec.samples_folder)
        self._checkpointer = Checkpointer(
            spec, world, self._store, self._trainer, self._state,
            Reporter(spec.progress_file, world, BATCH_SIZE), reader.num_rows,
        )  # fmt: skip
        order = SampleOrder(reader.num_rows, reader.group_rows, 0)
        source = BatchSource(
            Blocks(reader, order, microbatch_cut(spec.model, spec.train), BATCH_SIZE, MICROBATCHES, world), pin=False
        )
        self._microbatches: list[Microbatch] = source.batch(0).microbatches
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
                    (reading, lambda: read_all(paths)),
                    (restore, lambda: restorer.take_over(restorer.read(point))),
                ]
                for name, work in both[:: 1 if number % 2 else -1]:
                    trainer.optimization.optimizer.state.clear()
                    gc.collect()
                    (let_go_of if reading == READING_ON_DISK else read_and_forget)(paths)
                    self._time(name, work)
            self._time("reading and forgetting, files in memory", lambda: read_and_forget(paths))
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
        self._trainer.take_step(self._state.step, self._microbatches)
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
        return make_trainer(self._spec, dataset, self._precision, self._world)

    def _require_equal(self, restored: Trainer) -> None:
        live = self._trainer.model.state_dict()
        assert all(live[name].equal(tensor) for name, tensor in restored.model.state_dict().items())
