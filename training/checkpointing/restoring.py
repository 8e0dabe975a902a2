"""From a checkpoint back to the state of training, by all ranks together.

Each rank reads a share of the files, every byte once, and hashes it on the way; then the files go round. So a restart
takes no longer on more ranks. Invariant: nothing of a checkpoint is taken over before all ranks have found their shares
to be what was written; if one has not, all read it again, a few times, and then the segment ends. Whether a checkpoint
is damaged is not for ranks to decide: each has one machine's memory, and one machine's way to the store.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from storage.checkpoints.checkpoints import (
    CHUNK_BYTES,
    STATE_NAME,
    FoundCheckpoint,
    checkpoint_readers,
    load_checkpoint,
    read_checkpoint_file,
)
from storage.checkpoints.tensor_files import find_entries
from storage.checkpoints.tensor_layout import TensorKind
from storage.errors import (
    CorruptObjectError,
    ObjectMissingError,
    StoreError,
    StoreUnavailableError,
)
from storage.objects.readable import drop_from_cache, reading
from storage.objects.store import Store
from training.checkpointing.exchange import first_trouble
from training.checkpointing.signature import (
    require_same_optimizer,
    require_same_signature,
    signature_of_file,
    signature_of_model,
    signature_of_optimizer,
)
from training.checkpointing.state_tensors import share_of, shares_of, view_tensors
from training.collectives import broadcast
from training.optim.optimization import Optimization
from training.rank_status import Collective
from training.spec import ResumePoint
from training.trainer import Trainer
from training.world import World

# Between one read of a checkpoint and the next, by a rank: together short beside the start of another segment.
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoredFile:
    """One file of tensors, as the checkpoint's index describes it: of the model, or else of the optimizer."""

    key: str
    num_bytes: int
    sha256: str
    is_of_model: bool


@dataclass(frozen=True)
class RankFiles:
    """What one rank has read of a checkpoint: its files' bytes by their keys, and the state, which every rank reads."""

    found: FoundCheckpoint
    state: dict[str, Any]
    files: dict[str, Tensor]

    @property
    def all_files(self) -> list[StoredFile]:
        """The files of all ranks' shares, in the order in which they go round."""
        return _tensor_files(self.found)


class Restorer:
    """Reads checkpoints into the trainer."""

    def __init__(self, store: Store, world: World, trainer: Trainer) -> None:
        self._store = store
        self._world = world
        self._trainer = trainer

    def read(self, point: ResumePoint) -> RankFiles:
        """This rank's share of the checkpoint. A collective; raises `StoreUnavailableError` on every rank alike."""
        share, trouble = None, None
        try:
            share = self._read_share(point)
        except (CorruptObjectError, StoreError, OSError) as error:
            trouble = f"{self._world.label}: {error}"
        trouble = first_trouble(self._world, trouble)
        if share is None or trouble is not None:
            raise StoreUnavailableError(f"The checkpoint of step {point.step} could not be read. {trouble}")
        return share

    def take_over(self, share: RankFiles) -> None:
        """Give the trainer the state of which each rank has a share. A collective; raises `IncompatibleRunError`."""
        shares = shares_of(share.all_files, self._world)
        owners = {file.key: rank for rank, files in enumerate(shares) for file in files}
        weights = WeightsLoader(self._trainer.model, share.found)
        state = OptimizerLoader(self._trainer.optimization, share.found)
        for file in share.all_files:
            data = self._pass_round(share.files.pop(file.key, None), file, owners[file.key])
            if file.is_of_model:
                weights.take_over(file.key, data)
                continue
            weights.require_fit()  # before the optimizer's state, whose names would show it less well
            state.take_over(file.key, data)
        weights.require_fit()
        state.require_fit()
        self._trainer.optimization.load_state_dict(share.state["optimization"])

    def _read_share(self, point: ResumePoint) -> RankFiles:
        found = load_checkpoint(self._store, point.path, point.digest)
        state = json.loads(read_checkpoint_file(self._store, found, STATE_NAME))
        own = share_of(_tensor_files(found), self._world)
        with checkpoint_readers() as readers:
            read = readers.map(partial(read_checked, self._store), own)
            return RankFiles(found, state, {file.key: data for file, data in zip(own, read, strict=True)})

    def _pass_round(self, data: Tensor | None, file: StoredFile, owner: int) -> Tensor:
        """The file's bytes, on the device, from the rank that has them."""
        device = self._trainer.device
        data = torch.empty(file.num_bytes, dtype=torch.uint8, device=device) if data is None else data.to(device)
        broadcast(data, owner, self._world, Collective.RESTORED)
        return data


def read_patiently(read: Callable[[], _Result]) -> _Result:
    """What `read` gives, made again a few times: a file system that is away for a second costs no segment.

    All ranks come here with the same answer. Raises what `read` raised last.
    """
    for seconds in PAUSES_SECONDS:
        try:
            return read()
        except (CorruptObjectError, StoreUnavailableError):
            time.sleep(seconds)  # for a store there is nothing to wait on
    return read()


def load_weights(store: Store, point: ResumePoint, model: torch.nn.Module) -> FoundCheckpoint:
    """Give the model the weights of a checkpoint, hashed while they are read.

    Raises `CorruptObjectError`, and what `reading` raises.
    """
    found = read_patiently(lambda: load_checkpoint(store, point.path, point.digest))
    weights = WeightsLoader(model, found)
    for file in _tensor_files(found):
        if file.is_of_model:
            weights.take_over(file.key, read_patiently(partial(read_checked, store, file)))
    weights.require_fit()
    return found


class WeightsLoader:
    """Copies a checkpoint's tensors into a model's own, file by file, and remembers what it was given."""

    def __init__(self, model: torch.nn.Module, found: FoundCheckpoint) -> None:
        self._live = dict(model.state_dict())
        self._path = found.path
        self._given: dict[str, TensorKind] = {}

    def take_over(self, name: str, data: Tensor) -> None:
        """Copy what fits from a file's bytes; what does not is raised by `require_fit`, all of it at once."""
        entries = find_entries(_header_of(data), len(data), name)
        self._given |= signature_of_file(entries)
        expected = signature_of_model(self._live)
        for tensor_name, tensor in view_tensors(data, entries).items():
            if expected.get(tensor_name) == self._given[tensor_name]:
                self._live[tensor_name].detach().copy_(tensor)

    def require_fit(self) -> None:
        """Raise `IncompatibleRunError` unless what was given are the model's tensors, all of them and no others."""
        require_same_signature(self._path, self._given, signature_of_model(self._live))


class OptimizerLoader:
    """Gives a checkpoint's tensors to the configured optimizer, file by file, and remembers what it was given."""

    def __init__(self, optimization: Optimization, found: FoundCheckpoint) -> None:
        self._optimization = optimization
        self._expected = signature_of_optimizer(optimization.expected)
        self._found = found
        self._given: dict[str, TensorKind] = {}

    def take_over(self, name: str, data: Tensor) -> None:
        """Take what fits from a file's bytes; what does not is raised by `require_fit`, all of it at once."""
        entries = find_entries(_header_of(data), len(data), name)
        given = signature_of_file(entries)
        self._given |= given
        tensors = view_tensors(data, entries).items()
        self._optimization.load_tensors({n: tensor for n, tensor in tensors if self._expected.get(n) == given[n]})

    def require_fit(self) -> None:
        """Raise `IncompatibleRunError` unless it was the state of this optimizer, all of it and nothing else."""
        train = self._found.index.configuration.get("train")
        of = train.get("optimizer") if isinstance(train, dict) else None
        configured = self._optimization.name
        require_same_optimizer(self._found.path, of, self._given, configured, self._expected)


def read_checked(store: Store, file: StoredFile) -> Tensor:
    """The bytes of one file [num_bytes], read once and hashed on the way.

    Raises `CorruptObjectError`, and what `reading` raises.

    A copy that is on local disk already will do; if it is not as it should be, the store is asked.
    """
    key = file.key
    data = torch.empty(file.num_bytes, dtype=torch.uint8)
    with suppress(OSError, ObjectMissingError):  # what is wrong with a disk is raised when it happens again
        if _read_into(data, store.fetch(key, is_checked=True)) == file.sha256:
            return data
    drop_from_cache(store, key)
    with reading(store, key):
        found = _read_into(data, store.fetch(key))
    if found != file.sha256:
        raise CorruptObjectError(
            f"{key} was changed after it was written: {file.num_bytes} bytes with SHA-256 {file.sha256[:16]}... "
            f"expected, {found[:16]}... found."
        )
    return data


def _read_into(data: Tensor, path: Path) -> str:
    """Fill `data` from the file; its SHA-256, or why there is none."""
    view, digest = data.numpy().data, hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        position = 0
        while count := file.readinto(view[position : position + CHUNK_BYTES]):
            digest.update(view[position : position + count])
            position += count
        if position < len(view) or file.read(1):
            return f"another number of bytes, {path.stat().st_size},"
    return digest.hexdigest()


def _header_of(data: Tensor) -> io.BytesIO:
    """The bytes at the beginning of a file, with which tensors follow."""
    num_bytes = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
    return io.BytesIO(data[:num_bytes].cpu().numpy().tobytes())


def _tensor_files(found: FoundCheckpoint) -> list[StoredFile]:
    """The model's, those of weights that are not trained among them, then the optimizer's."""
    of_model = found.model_files
    of_optimizer = {key: found.all_files[key] for key in map(found.key_of, found.index.optimizer_files)}
    return [
        StoredFile(key, file.num_bytes, file.sha256, key in of_model) for key, file in (of_model | of_optimizer).items()
    ]
