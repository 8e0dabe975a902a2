"""The tensors that are a run's state, and safetensors files of them in host memory.

Invariant: which file holds which tensor follows from names, types and shapes alone; ranks only share the files out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from storage.checkpoints.checkpoints import MODEL_STEM, OPTIMIZER_STEM
from storage.checkpoints.tensor_files import TensorEntry
from storage.checkpoints.tensor_layout import TensorFile, lay_out
from training.checkpointing.host_memory import HostMemory
from training.models.frozen import tensors_to_save
from training.rank_shares import assign
from training.tensor_files import TYPES, kind_of
from training.trainer import Trainer
from training.world import World


class _File(Protocol):
    @property
    def num_bytes(self) -> int: ...


AnyFile = TypeVar("AnyFile", bound=_File)


class StateTensors:
    """The live tensors of model and optimizer, as the files of a checkpoint hold them.

    `leaves_out_frozen`: without those of the model that are not trained.
    """

    def __init__(self, trainer: Trainer, leaves_out_frozen: bool = False) -> None:
        self._tensors: dict[str, Mapping[str, Tensor]] = {
            MODEL_STEM: tensors_to_save(trainer.model, leaves_out_frozen),
            OPTIMIZER_STEM: trainer.optimization.tensors(),
        }
        # What is not trained too, whether or not a file has it.
        self.everything = dict(self._tensors)
        if leaves_out_frozen:
            self.everything[MODEL_STEM] = tensors_to_save(trainer.model, leaves_out_frozen=False)
        self.files: list[TensorFile] = []
        self._stems: dict[str, str] = {}
        for stem, tensors in self._tensors.items():
            files = lay_out(stem, {name: kind_of(tensor) for name, tensor in tensors.items()})
            self.files += files
            self._stems |= {file.name: stem for file in files}

    def tensors_of(self, file: TensorFile) -> Mapping[str, Tensor]:
        """The live tensors among which those of `file` are."""
        return self._tensors[self.stem_of(file)]

    def stem_of(self, file: TensorFile) -> str:
        """Whether `file` is of the model or of the optimizer: a key of `everything`."""
        return self._stems[file.name]


class HostFile:
    """One safetensors file in host memory; `data` [bytes] is what is to be written to disk, byte for byte."""

    def __init__(self, layout: TensorFile, page_locked: bool = False) -> None:
        self.layout = layout
        self._memory = HostMemory(layout.num_bytes, page_locked)
        self.data = self._memory.data
        self.data[: len(layout.header)] = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
        self.tensors = view_tensors(self.data, layout.entries)

    def filled_from(self, state: StateTensors) -> "HostFile":
        """Fill this file with the present values, and return it.

        From a GPU to page-locked memory no thread waits for the end of the copy. Other memory has the values on return.
        """
        tensors = state.tensors_of(self.layout)
        for name, view in self.tensors.items():
            view.copy_(tensors[name], non_blocking=self._memory.is_page_locked)
        return self

    def release(self) -> None:
        """Release page-locked memory, before the last reference to it goes; no copy to it may be under way any more."""
        self._memory.release()


def view_tensors(data: Tensor, entries: Iterable[TensorEntry]) -> dict[str, Tensor]:
    """The tensors in a file's bytes, on the device where those are; nothing is copied."""
    return {entry.name: data[entry.start : entry.end].view(TYPES[entry.dtype]).view(entry.shape) for entry in entries}


def share_of(files: Sequence[AnyFile], world: World) -> list[AnyFile]:
    """The files that this rank writes or reads."""
    return shares_of(files, world)[world.rank]


def shares_of(files: Sequence[AnyFile], world: World) -> list[list[AnyFile]]:
    """The files that each rank writes or reads: shares of about the same number of bytes."""
    shares = assign([file.num_bytes for file in files], world.size)
    return [[files[index] for index in share] for share in shares]
