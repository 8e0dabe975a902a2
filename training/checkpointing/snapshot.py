"""A copy of this rank's share of the state in host memory, from which a checkpoint is written beside training.

Invariant: what is written is the state at one step boundary. On a CPU the copy is made at once, by two threads:
training stands still, and one core alone does not move memory as fast as it goes. From a GPU it is made on a stream of
its own while the next forward and backward pass run, and the optimizer's next change of the weights waits for it there;
the CPU waits for nothing. Where there are several ranks, the thread that writes first hashes what this one does not
copy, beside that pass too, and the next change waits for it. Buffers are allocated once, page-locked where there is a
GPU; who overwrites them has made sure that no thread reads them any more.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.optim import Optimizer

from storage.checkpoints.tensor_layout import TensorFile
from training.checkpointing.state_hashes import StateHashes
from training.checkpointing.state_tensors import HostFile, StateTensors, share_of
from training.world import World

NUM_COPIERS = 2


class Snapshot:
    """Host buffers for the files that this rank writes."""

    def __init__(self, world: World, device: torch.device, optimizer: Optimizer) -> None:
        self._world = world
        self._device = device
        self._files: list[TensorFile] = []
        self.own: list[HostFile] = []
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._hashes: StateHashes | None = None
        if self._on_gpu or world.full_size > 1:
            optimizer.register_step_pre_hook(self._hold_back_changes)

    @property
    def is_prepared(self) -> bool:
        return bool(self._files)

    def prepare(self, files: list[TensorFile]) -> None:
        """Allocate the buffers, unless there are such already."""
        if files == self._files:
            return
        self.finish()
        for file in self.own:
            file.release()
        self.own = [HostFile(file, page_locked=self._on_gpu) for file in share_of(files, self._world)]
        self._files = files

    def deal_anew(self) -> None:
        """This rank's share is another one from here on. What is in the buffers may still be read."""
        self._files = []

    def take(self, state: StateTensors, hashes: StateHashes) -> None:
        """Copy this rank's share of the state, or begin to. What is in the buffers must have been written before.

        `finish` has the hashes of what is not copied.
        """
        self.prepare(state.files)
        self._hashes = hashes
        if self._stream is None:
            self._copy_by_several(state)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with self._beside():
            self._copy(state)
            self._copied = self._stream.record_event()

    def finish(self) -> None:
        """Hash what is not copied, once, and wait until the copy is there. For the thread that writes it, at once."""
        if self._copied is not None:
            # A new thread is on GPU 0: any call would take memory there for a context that this rank does not need.
            torch.cuda.set_device(self._device)
        if self._hashes is not None and not self._hashes.are_read.is_set():
            self._hash(self._hashes)
        if self._copied is not None:
            self._copied.synchronize()

    def _hash(self, hashes: StateHashes) -> None:
        with self._beside():
            try:
                hashes.read()
                if self._stream is not None:
                    self._copied = self._stream.record_event()
            finally:
                hashes.are_read.set()  # training must not wait for a thread that has failed
            hashes.settle()

    def _beside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _copy(self, state: StateTensors) -> None:
        for file in self.own:
            file.filled_from(state)

    def _copy_by_several(self, state: StateTensors) -> None:
        with ThreadPoolExecutor(NUM_COPIERS) as copiers:
            list(copiers.map(lambda file: file.filled_from(state), self.own))

    def _hold_back_changes(self, *_: object) -> None:
        if self._hashes is not None:
            self._hashes.are_read.wait()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
