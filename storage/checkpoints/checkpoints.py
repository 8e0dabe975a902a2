"""Checkpoints in a store: immutable files, and an index of their hashes that is written last.

Invariant: a checkpoint exists when its `index.json` exists, and it is valid when every file has the size and SHA-256
that the index states, and the index the SHA-256 that the manifest states. So must the files be that it names beside
its own, of weights that training does not change. A folder without an index is a save under way, or one that a kill cut
off; it is never read.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from storage.checkpoints.tensor_files import find_non_finite, weights_sha256
from storage.checkpoints.tensor_layout import tensor_file_names
from storage.errors import CorruptObjectError, ObjectExistsError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json, require_format, sha256_of_bytes, sha256_of_file
from storage.objects.direct_io import write_directly
from storage.objects.readable import drop_from_cache, reading
from storage.objects.store import Store, put_file_anew
from storage.runs.code_version import CodeVersion
from storage.runs.ledger import LedgerPart, require_ledger_to
from storage.runs.rollbacks.positions import end_position
from storage.runs.run_records import FrozenFile, Record
from storage.runs.run_state import RollbackRecord

CHECKPOINT_FORMAT = 1
INDEX_NAME = "index.json"
STATE_NAME = "state.json"
# What the files of tensors are called before they are numbered: model.safetensors, or model-00001-of-00003.safetensors.
MODEL_STEM = "model"
OPTIMIZER_STEM = "optimizer"
CHUNK_BYTES = 8 * 2**20
# While one file is hashed another one is read.
NUM_READERS = 2


class CheckpointFile(Record):
    """Size and hash of one file of a checkpoint."""

    num_bytes: int
    sha256: str


class CheckpointIndex(Record):
    """What makes a folder a checkpoint. `cursor` is where in the run's order the samples of its steps end.

    Without rollbacks that is the number of samples consumed: step * batch size.
    """

    format: int = CHECKPOINT_FORMAT
    run: str
    fence: int
    step: int
    cursor: int
    dataset_digest: str
    versions: dict[str, str] = Field(description="Libraries and device that made it.")
    holdfast: CodeVersion | None = Field(None, description="Of the ranks that made it. None: not recorded.")
    configuration: dict[str, object] = Field(
        {},
        description="Of model and training, for a person who finds it. The model's signature is in its files' headers.",
    )
    ledger: LedgerPart | None = Field(None, description="Newest part of the ledger of all steps up to this one.")
    constants: list[str] = Field(
        [],
        description="Tensors of the model that no step changes, its buffers. They may have infinities, as masks do.",
    )
    files: dict[str, CheckpointFile]
    frozen: list[FrozenFile] = Field(
        [],
        exclude_if=lambda files: not files,
        description="Files of the run's first weights, which have the tensors that training does not change.",
    )

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files.values())

    @property
    def model_files(self) -> list[str]:
        """Names of its own files that hold tensors of the model, in order: of those that training changes."""
        return tensor_file_names(self.files, MODEL_STEM)

    @property
    def tensor_files(self) -> list[str]:
        """Names of its own files that hold tensors: the model's, then the optimizer's."""
        return self.model_files + self.optimizer_files

    @property
    def optimizer_files(self) -> list[str]:
        """Names of the files that hold the optimizer's state, in order."""
        return tensor_file_names(self.files, OPTIMIZER_STEM)


class SaveCancelledError(Exception):
    """A save was given up on purpose, before its last byte was written."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint: key of its folder, digest of its index, and the index."""

    path: str
    digest: str
    index: CheckpointIndex

    def key_of(self, name: str) -> str:
        """Of one of its own files."""
        return f"{self.path}/{name}"

    @property
    def all_files(self) -> dict[str, CheckpointFile]:
        """By their keys: its own, and those of weights that training does not change."""
        return {self.key_of(name): file for name, file in self.index.files.items()} | self.frozen_files

    @property
    def model_files(self) -> dict[str, CheckpointFile]:
        """By their keys: those that hold the model's tensors, all of them."""
        own = {self.key_of(name): self.index.files[name] for name in self.index.model_files}
        return own | self.frozen_files

    @property
    def frozen_files(self) -> dict[str, CheckpointFile]:
        """By their keys: those of weights that training does not change."""
        return {file.key: CheckpointFile(num_bytes=file.num_bytes, sha256=file.sha256) for file in self.index.frozen}


def checkpoint_path(run: str, step: int, fence: int) -> str:
    """Key of a checkpoint's folder: unique, since a fence passes each step once."""
    return f"{RUNS_FOLDER}/{run}/checkpoints/{step:012d}-f{fence:08d}"


def put_checkpoint_file(
    store: Store, key: str, data: memoryview, scratch: Path, is_cancelled: Callable[[], bool] = lambda: False
) -> CheckpointFile:
    """Put one file's bytes, by way of the local file `scratch`; hashed as they go by.

    A file of a save that was cut off under the same fence is replaced: without an index it was never read. Raises
    `SaveCancelledError`, and `OSError` where the local disk fails.
    """
    digest = hashlib.sha256()
    try:
        with scratch.open("wb", buffering=0) as file:
            for start in range(0, len(data), CHUNK_BYTES):
                if is_cancelled():
                    raise SaveCancelledError
                chunk = data[start : start + CHUNK_BYTES]
                write_directly(file, chunk)
                digest.update(chunk)  # not meanwhile: two threads would take more than the one core beside training
        put_file_anew(store, scratch, key)
    finally:
        scratch.unlink(missing_ok=True)  # the store may have kept the very file: nothing may be written to it again
    return CheckpointFile(num_bytes=len(data), sha256=digest.hexdigest())


def checkpoint_readers() -> ThreadPoolExecutor:
    """Threads that read and hash a checkpoint's files, several at a time."""
    return ThreadPoolExecutor(NUM_READERS, "checkpoint-reader")


def write_index(store: Store, index: CheckpointIndex) -> FoundCheckpoint:
    """Make a checkpoint of files that are all in the store: from here on it exists."""
    path = checkpoint_path(index.run, index.step, index.fence)
    data = canonical_json(index.model_dump(mode="json"))
    try:
        store.write_if_absent(f"{path}/{INDEX_NAME}", data)
    except ObjectExistsError:
        if store.read(f"{path}/{INDEX_NAME}") != data:  # else it is our own, of an attempt whose answer was lost
            raise
    return FoundCheckpoint(path, sha256_of_bytes(data), index)


def describe_file(path: Path) -> CheckpointFile:
    """Size and hash of a finished file."""
    return CheckpointFile(num_bytes=path.stat().st_size, sha256=sha256_of_file(path))


def load_checkpoint(store: Store, path: str, digest: str | None = None) -> FoundCheckpoint:
    """Read the index in the folder `path`.

    Raises `CorruptObjectError` if it is not `digest` or no index, and what `reading` raises if it cannot be read.
    """
    key = f"{path}/{INDEX_NAME}"
    with reading(store, key):
        data = store.read(key)
    found = sha256_of_bytes(data)
    if digest is not None and found != digest:
        raise CorruptObjectError(f"{key} has SHA-256 {found}, the manifest states {digest}.")
    require_format(data, CHECKPOINT_FORMAT, f"The checkpoint {path}")
    try:
        return FoundCheckpoint(path, found, CheckpointIndex.model_validate_json(data))
    except ValidationError as error:
        raise CorruptObjectError(f"{key} is not a checkpoint's index.") from error


def list_complete_checkpoints(store: Store, run: str, fence: int) -> list[tuple[int, str]]:
    """Step and folder of each complete checkpoint that the segment with this fence wrote, newest first.

    Nothing of them is read: their content is for the validation.
    """
    suffix = f"-f{fence:08d}/{INDEX_NAME}"
    keys = [k for k in store.list_keys(f"{RUNS_FOLDER}/{run}/checkpoints/") if k.endswith(suffix)]
    steps = [key.removesuffix(suffix).rpartition("/")[2] for key in keys]
    return sorted(
        ((int(step), checkpoint_path(run, int(step), fence)) for step in steps if step.isdigit()), reverse=True
    )


def verify_checkpoint(store: Store, path: str, digest: str | None = None) -> FoundCheckpoint:
    """Hash every byte of a checkpoint, as its device has it now, and not from memory.

    Raises `CorruptObjectError` naming the file that is not as it was written, and what `reading` raises for one that
    cannot be read. What follows from either is decided in `tasks.verification.verdicts`.
    """
    drop_from_cache(store, f"{path}/{INDEX_NAME}")
    found = load_checkpoint(store, path, digest)

    def verify(named: tuple[str, CheckpointFile]) -> None:
        key, expected = named
        drop_from_cache(store, key)
        with reading(store, key):
            actual = describe_file(store.fetch(key))
        if actual != expected:
            raise CorruptObjectError(
                f"{key} was changed after it was written: {expected.num_bytes} bytes with SHA-256 "
                f"{expected.sha256[:16]}... expected, {actual.num_bytes} bytes with {actual.sha256[:16]}... found."
            )

    with checkpoint_readers() as readers:
        list(readers.map(verify, found.all_files.items()))
    return found


def validate_for_promotion(
    found: FoundCheckpoint, store: Store, batch_size: int, rollbacks: Sequence[RollbackRecord] = ()
) -> None:
    """Check what hashes cannot: finite values; path, step, cursor and ledger in agreement.

    Raises `CorruptObjectError`, and what `reading` raises. The hashes are checked by `verify_checkpoint` before. What
    training does not change was found finite when the run began.
    """
    index = found.index
    if found.path != checkpoint_path(index.run, index.step, index.fence):
        raise CorruptObjectError(f"{found.path} holds the index of another checkpoint, of step {index.step}.")
    for name in index.tensor_files:
        with reading(store, f"{found.path}/{name}"):
            constants = index.constants if name in index.model_files else ()
            tensor = find_non_finite(store.fetch(f"{found.path}/{name}"), constants)
        if tensor is not None:
            raise CorruptObjectError(f"{found.path}/{name}: tensor {tensor} is not finite.")
    cursor = end_position(index.step, batch_size, rollbacks)
    if index.cursor != cursor:
        raise CorruptObjectError(
            f"{found.path}: after step {index.step} with {batch_size} samples a step the cursor is {cursor}, the index "
            f"states {index.cursor}."
        )
    require_ledger_to(store, index.ledger, index.step)


def fetch_model(store: Store, found: FoundCheckpoint) -> list[Path]:
    """Local paths of the files that hold the model's tensors, all of them. Raises `ObjectMissingError`."""
    return [store.fetch(key) for key in found.model_files]


def hash_weights(store: Store, found: FoundCheckpoint) -> str:
    """SHA-256 of the model's tensors as `weights_sha256` takes it."""
    return weights_sha256(fetch_model(store, found))


def list_checkpoint_paths(store: Store, run: str) -> list[tuple[str, int, int]]:
    """Folders of all checkpoints of a run, complete or not, each with its step and its fence. For cleaning up."""
    prefix = f"{RUNS_FOLDER}/{run}/checkpoints/"
    folders = {key.removeprefix(prefix).partition("/")[0] for key in store.list_keys(prefix)}
    named = [(folder, *folder.partition("-f")[::2]) for folder in sorted(folders)]
    return [
        (f"{prefix}{folder}", int(step), int(fence))
        for folder, step, fence in named
        if step.isdigit() and fence.isdigit()
    ]


def read_checkpoint_file(store: Store, found: FoundCheckpoint, name: str) -> bytes:
    """One file's content, hashed while it is in hand. Raises `CorruptObjectError`, and what `reading` raises."""
    key = f"{found.path}/{name}"
    with reading(store, key):
        data = store.read(key)
    if sha256_of_bytes(data) != found.index.files[name].sha256:
        raise CorruptObjectError(f"{key} was changed after it was written.")
    return data


def delete_checkpoint(store: Store, path: str) -> None:
    """Remove a checkpoint's files, the index first: what is left after a kill is no checkpoint any more."""
    store.delete(f"{path}/{INDEX_NAME}")
    for key in list(store.list_keys(f"{path}/")):
        store.delete(key)
