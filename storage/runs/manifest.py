"""A run's append-only log of generations: the only memory that Holdfast trusts.

Invariant: generation n+1 is put only if absent, by a writer that has read generation n and found its requirements met
there. So of two racing writers one wins, the other reads again and checks again, and nothing is ever overwritten. A
generation is read under the name of the run that it states, and under no other.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from storage.errors import (
    ConflictError,
    CorruptManifestError,
    CorruptObjectError,
    FencedError,
    IncompatibleRunError,
    ObjectExistsError,
    RunMissingError,
)
from storage.objects.addresses import RUNS_FOLDER, run_address
from storage.objects.digests import canonical_json, digest_of, is_sealed, require_format, sha256_of_bytes
from storage.objects.store import Store
from storage.runs.earlier_segments import with_earlier_segments, without_earlier_segments
from storage.runs.newest_generation import find_newest_key, met_generation
from storage.runs.run_records import Record
from storage.runs.run_state import RunState

MAX_ATTEMPTS = 20
# So many keys are looked at before those are passed over that no run is found by.
PAGE_KEYS = 1000
# Before each further look at a generation that seems damaged: a bit that flips in memory, or a cache, is no damage.
LOOK_AGAIN_SECONDS = (0.5, 2.0)
GENERATION_FORMAT = 1


class Generation(Record):
    """One object of the log. `digest` covers the rest, so that a flipped bit is noticed when it is read.

    In the store its state has only the last segments, and the digest is over that; see `earlier_segments.py`.
    """

    format: int = GENERATION_FORMAT
    generation: int
    commit_id: str
    written_at: float
    event: str
    state: RunState
    digest: str = ""

    def sealed(self) -> "Generation":
        return self.model_copy(update={"digest": self.content_digest()})

    def content_digest(self) -> str:
        return digest_of(self.model_dump(mode="json", exclude={"digest"}))


@dataclass(frozen=True)
class Manifest:
    """The log of the run named `run` in `store`."""

    store: Store
    run: str

    def load_head(self) -> Generation:
        """The highest generation.

        Raises `RunMissingError`, `CorruptManifestError` if its bytes have changed, or `IncompatibleRunError` if a later
        version wrote it or it is that of another run.
        """
        head = self.find_head()
        if head is None:
            raise RunMissingError(
                f"There is no run {self.run!r} in {self.store.address}. "
                "Check `run` and `store`, or start it with `holdfast run`."
            )
        return head

    def find_head(self, known: Generation | None = None) -> Generation | None:
        """The highest generation, or None for a run that was never started.

        `known`: an earlier answer, which is given again, unread, while no other generation is the highest.
        """
        key = find_newest_key(self.store, self._key_prefix(), self._key)
        if known is not None and key == self._key(known.generation):
            return known
        return None if key is None else self._load(key)

    def list_addresses(self) -> list[str]:
        """Where all generations are, the oldest first, sound or not."""
        return [f"{self.store.address}/{key}" for key in self.store.list_keys(self._key_prefix())]

    def load_generation(self, number: int) -> Generation:
        """An earlier generation. Raises as `load_head`, and `ObjectMissingError`."""
        return self._load(self._key(number))

    def commit_after(self, number: int, event: str, state: RunState) -> Generation:
        """Put the generation after `number`, which cannot be read. Raises `ConflictError` if there is one."""
        try:
            return self._put(number + 1, event, state)
        except ObjectExistsError as error:
            raise ConflictError(
                f"The run {self.run!r} was continued by another process. Nothing was changed."
            ) from error

    def exists(self) -> bool:
        """Whether the run was ever started. Reads nothing of it."""
        return any(True for _ in self.store.list_keys(self._key_prefix(), most=1))

    def create(self, state: RunState) -> Generation:
        """Put the first generation. Raises `ConflictError` if the run exists."""
        try:
            return self._put(1, "created", state)
        except ObjectExistsError as error:
            raise ConflictError(f"The run {self.run!r} was started by another process at the same moment.") from error

    def commit(self, event: str, change: Callable[[RunState, int], RunState]) -> Generation:
        """Put the next generation: `change(state, generation)` of the head.

        `change` must be pure and raises a `ConflictError` where the head forbids it; it is called again on a newer head
        whenever another writer was quicker.
        """
        for _ in range(MAX_ATTEMPTS):
            head = self.load_head()
            number = head.generation + 1
            try:
                return self._put(number, event, change(head.state, number))
            except ObjectExistsError:
                continue  # which is the head now, or one behind it
        raise ConflictError(
            f"The run {self.run!r}: other processes committed first {MAX_ATTEMPTS} times in a row. Run again."
        )

    def _put(self, number: int, event: str, state: RunState) -> Generation:
        stored = without_earlier_segments(state, self.store)
        generation = Generation(
            generation=number, commit_id=uuid.uuid4().hex, written_at=time.time(), event=event, state=stored
        ).sealed()
        key = self._key(number)
        try:
            self.store.write_if_absent(key, canonical_json(generation.model_dump(mode="json")))
        except ObjectExistsError:
            met_generation(self.store, self._key_prefix(), number)
            # A network file system may repeat a link whose reply was lost, and then meets our own commit.
            if self._load(key).commit_id != generation.commit_id:
                raise
        met_generation(self.store, self._key_prefix(), number)
        whole = state.model_copy(update={"earlier_segments": stored.earlier_segments})
        return generation.model_copy(update={"state": whole})

    def _load(self, key: str) -> Generation:
        """The generation under this key. One that seems damaged is read again before it is called so."""
        read: Callable[[str], bytes] = self.store.read
        for seconds in LOOK_AGAIN_SECONDS:
            try:
                return self._read(key, read)
            except CorruptManifestError:
                time.sleep(seconds)  # nothing signals when wrong answers end
                read = self._read_past_caches
        return self._read(key, read)

    def _read_past_caches(self, key: str) -> bytes:
        return b"".join(self.store.read_chunks(key))

    def _read(self, key: str, read: Callable[[str], bytes]) -> Generation:
        try:
            data = read(key)
        except CorruptObjectError as error:
            raise self._corrupt(key, None, f"it cannot be read: {error}") from error
        # First of all, and for a generation of any format: a flipped bit may as well make it look like a later one.
        if not is_sealed(data, "digest"):
            raise self._corrupt(key, data, "its content does not have the digest it states")
        require_format(data, GENERATION_FORMAT, f"The manifest of run {self.run!r}")
        try:
            generation = Generation.model_validate_json(data)
        except ValidationError as error:
            raise self._corrupt(key, data, "it is not a manifest generation") from error
        if self._key(generation.generation) != key:
            raise self._corrupt(key, data, f"it is generation {generation.generation}")
        self._require_own(generation.state)
        try:
            return generation.model_copy(update={"state": with_earlier_segments(generation.state, self.store)})
        except CorruptObjectError as error:
            raise self._corrupt(key, data, f"segments that it names cannot be read: {error}") from error

    def _require_own(self, state: RunState) -> None:
        """Raise `IncompatibleRunError` in a folder that was copied or renamed: all keys in it lead to the other run."""
        if state.run != self.run:
            raise IncompatibleRunError(
                f"The folder {run_address(self.store, self.run)} holds the manifest of run {state.run!r}, not of "
                f"{self.run!r}: it was copied or renamed. Its manifest names checkpoints and ledger by the keys below "
                f"{RUNS_FOLDER}/{state.run}, so a run cannot be copied or renamed within a store. If the folder was "
                f"renamed, give it the name {state.run!r} again; if it was copied, use "
                f"{run_address(self.store, state.run)}, and copy the whole store for a second copy of the run. "
                "Nothing was changed."
            )

    def _key_prefix(self) -> str:
        return f"{RUNS_FOLDER}/{self.run}/manifest/"

    def _key(self, number: int) -> str:
        return f"{self._key_prefix()}{number:012d}.json"

    def _corrupt(self, key: str, data: bytes | None, problem: str) -> CorruptManifestError:
        found = "" if data is None else f" (SHA-256 {sha256_of_bytes(data)[:16]})"
        return CorruptManifestError(
            f"The manifest {self.store.address}/{key} is damaged: {problem}{found}. "
            f"`holdfast recover {run_address(self.store, self.run)}` shows from which entry before it the run can go "
            "on, and does that if you agree; or restore the file from a backup of the store. The checkpoints it names "
            "are not touched by this."
        )


def find_runs(store: Store) -> list[str]:
    """The names of all runs of a store, sorted. What else a run has is passed over, however much that is."""
    found: set[str] = set()
    prefix, after = f"{RUNS_FOLDER}/", ""
    while keys := list(store.list_keys(prefix, after, PAGE_KEYS)):
        parts = [key.split("/") for key in keys]
        found |= {name for _, name, *rest in parts if len(rest) == 2 and rest[0] == "manifest"}
        _, last, *rest = parts[-1]
        if last in found:
            after = f"{prefix}{last}0"  # to the next run: "0" is the character behind "/"
        elif rest:
            after = max(keys[-1], f"{prefix}{last}/manifest/")  # to where the manifest of the last one begins
        else:
            after = keys[-1]  # a file that no run has; "last-1/" comes before "last/"
    return sorted(found)


def require_fence(state: RunState, fence: int) -> None:
    """Raise `FencedError` unless the lease with this fence is the current one."""
    if state.lease is None or state.lease.fence != fence:
        holder = "no process" if state.lease is None else f"segment {state.lease.fence} on {state.lease.holder.host}"
        raise FencedError(
            f"The lease of segment {fence} of run {state.run!r} has ended; it is now held by {holder}. "
            "This segment can no longer promote a checkpoint: another process, which had not heard of this one for a "
            "while, ended it. The run goes on from what was promoted before."
        )
