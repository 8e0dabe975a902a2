"""A copy of this rank's share of the state in host memory, from which a checkpoint is written beside training.

Invariant: what is written is the state at one step boundary. On a CPU the copy is made at once, by two threads:
training stands still, and one core alone does not move memory as fast as it goes. From a GPU it is made on a stream of
its own while the next forward and backward pass run, and the optimizer's next change of the weights waits for it there;
the CPU waits for nothing. Where there are several ranks, the thread that writes first hashes what this one does not
copy, beside that pass too, and the next change waits for it. Buffers are allocated once, page-locked where there is a
GPU; who overwrites them has made sure that no thread reads them any more.

Of the best model's state a share of another rank's is copied, too, as its second holder does: by the thread that
writes, before it hashes, so training does not stand still for it; and into memory that is taken for that save alone.
"""

from collections.abc import Sequence
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
        self.second: list[HostFile] = []  # another rank's share, once `holds_second`
        self.holds_second = False
        self._state: StateTensors | None = None
        self._to_hold: Sequence[TensorFile] | None = None
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

    def take(self, state: StateTensors, hashes: StateHashes, to_hold: Sequence[TensorFile] | None = None) -> None:
        """Copy this rank's share of the state, or begin to. What is in the buffers must have been written before.

        `finish` has the hashes of what is not copied, and the copy of another rank's share that is `to_hold`.
        """
        self.prepare(state.files)
        self.let_go_of_second()
        self._state, self._hashes, self._to_hold = state, hashes, to_hold
        if self._stream is None:
            self._copy_by_several(state)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with self._beside():
            self._copy(state)
            self._copied = self._stream.record_event()

    def let_go_of_second(self) -> None:
        """Give the memory back that was taken for one save. No thread reads it any more."""
        for file in self.second:
            file.release()
        self.second, self.holds_second, self._state, self._to_hold = [], False, None, None

    def wait_until_read(self) -> None:
        """Wait until nothing is copied or hashed any more that training could change."""
        if self._hashes is not None:
            self._hashes.are_read.wait()
        if self._copied is not None:
            self._copied.synchronize()

    def finish(self) -> None:
        """Hash what is not copied, once, and wait until the copy is there. For the thread that writes it, at once."""
        if self._copied is not None:
            # A new thread is on GPU 0: any call would take memory there for a context that this rank does not need.
            torch.cuda.set_device(self._device)
        if self._hashes is not None and not self._hashes.are_read.is_set():
            self._read(self._hashes)
        if self._copied is not None:
            self._copied.synchronize()

    def _read(self, hashes: StateHashes) -> None:
        with self._beside():
            try:
                self._copy_second()
                hashes.read()
                if self._stream is not None:
                    self._copied = self._stream.record_event()
            finally:
                hashes.are_read.set()  # training must not wait for a thread that has failed
            hashes.settle()

    def _copy_second(self) -> None:
        """All of it; where there is no memory for it the save goes on without."""
        if self._to_hold is None or self._state is None:
            return
        try:
            for layout in self._to_hold:
                self.second.append(HostFile(layout, page_locked=self._on_gpu))  # kept: a copy to it may be under way
                self.second[-1].filled_from(self._state)
        except (OSError, MemoryError, RuntimeError) as error:
            print(f"There is no second copy of a share of the best model's checkpoint: {error}", flush=True)
        else:
            self.holds_second = True

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
