"""From the state of training to a checkpoint: beside training, or at once before the ranks leave.

Weights and optimizer moments are tensors under their names (safetensors); everything else is JSON. Nothing is pickled,
so a checkpoint from a stranger's bucket cannot run code. Of weights that are not trained the index has the hashes
alone. Each rank writes a share of the files; when the ranks have agreed at a step boundary that all are in the store,
and have compared the state that they are of, the first one writes the index, which every rank knows. Invariant: a
checkpoint is the state at one step boundary, and all ranks had the same; one that is not finished is never found, and
none is begun before every rank's thread is done with the one before: until then it may read the buffers. A save of the
best model so far that failed is made again from these, until it is there, or a better model is, or the next save has
waited for long enough.
"""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from storage.checkpoints.checkpoints import (
    STATE_NAME,
    CheckpointIndex,
    checkpoint_path,
    write_index,
)
from storage.errors import StoreError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.ledger import LedgerHeader, LedgerPart
from storage.runs.rollbacks.positions import end_position, skipped_ranges
from training.checkpointing.exchange import first_trouble, share_descriptions
from training.checkpointing.records import NOTHING_SAVED, SaveRecords
from training.checkpointing.snapshot import Snapshot
from training.checkpointing.state_hashes import StateHashes
from training.checkpointing.state_tensors import HostFile, StateTensors, share_of
from training.checkpointing.versions import read_versions
from training.checkpointing.writer import SECONDS_OF_ATTEMPTS, CheckpointWriter, SavePart, Writing, WrittenPart, attempt
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World

NEVER = threading.Event()
# Of the best model's save while the next one waits for it, whatever `store_seconds` is.
FEWEST_FAILURES = 3


class _Phase(Enum):
    """State of a save beside training; the same on all ranks."""

    IDLE = auto()
    FILES = auto()
    INDEX = auto()
    DROPPED = auto()  # it failed on some rank; the threads of others may still be writing


@dataclass
class _Save:
    """One save: of which state, in which files, and when it began; `num_parts` of the history's are in it."""

    step: int
    validated_step: int | None
    path: str
    tensors: StateTensors
    hashes: StateHashes
    num_parts: int
    began: float
    stall_seconds: float = 0.0
    part: SavePart | None = None  # what this rank writes of it beside training
    index: CheckpointIndex | None = None  # once all files are in the store
    num_failures: int = 0


class Checkpointer:
    """Saves one run's training state. Its methods are called by all ranks alike, in the same order."""

    def __init__(
        self,
        spec: SegmentSpec,
        world: World,
        store: Store,
        trainer: Trainer,
        state: TrainingState,
        reporter: Reporter,
        samples: int,
    ) -> None:
        self.records = SaveRecords(spec)
        self._spec = spec
        self._world = world
        self._store = store
        self._trainer = trainer
        self._state = state
        self._reporter = reporter
        self._epoch_samples = samples
        self._writer = CheckpointWriter(store, spec.scratch_folder / f"save-{world.slot}")
        self._snapshot = Snapshot(world, trainer.device, trainer.optimization.optimizer)
        self._phase = _Phase.IDLE
        self._save: _Save | None = None
        # As many as the time for which a store is waited for takes: counted, since ranks' clocks would not agree.
        self._most_failures = max(FEWEST_FAILURES, math.ceil(spec.store_seconds / SECONDS_OF_ATTEMPTS))

    @property
    def is_idle(self) -> bool:
        """Whether a save may begin."""
        return self._phase is _Phase.IDLE

    @property
    def is_saving_best(self) -> bool:
        """Whether the save under way is of the best model so far. The same on all ranks."""
        if self.is_idle or self._save is None or self._spec.checkpoint.keep_best == 0:
            return False
        return self._save.step == self._state.best_step and self._save.validated_step == self._save.step

    @property
    def writing(self) -> Writing:
        """State of the save under way on this rank, for the ranks to agree on."""
        if self._phase is _Phase.DROPPED:
            return Writing.BUSY if self._writer.writing is Writing.BUSY else Writing.DONE
        return Writing.DONE if self.is_idle else self._writer.writing

    def is_saved(self) -> bool:
        """Whether a save of just this state was made or begun. The first weights need none: the seed decides them."""
        return self.records.saved == (self._state.step, self._state.validated_step)

    def is_saved_for_good(self) -> bool:
        """Whether a checkpoint of just this state exists."""
        return self.is_idle and self.is_saved()

    def mark_restored(self, ledger: LedgerPart | None) -> None:
        """The state is as a checkpoint had it, whose newest part of the ledger is `ledger`."""
        self.records.ledger = ledger
        self._mark_saved()

    def begin(self) -> None:
        """Copy the state at this step boundary, and have the copy written beside training."""
        save = self._save = self._start()
        self._snapshot.take(save.tensors, save.hashes)
        save.part = self._own_part(save, self._snapshot.own)
        self._begin_files(save.part)
        self._mark_saved()
        save.stall_seconds = time.perf_counter() - save.began

    def _begin_files(self, part: SavePart) -> None:
        def write(given_up: threading.Event) -> WrittenPart:
            self._snapshot.finish()
            return self._writer.write(part, given_up)

        self._writer.start(write)
        self._phase = _Phase.FILES

    def advance(self, writing: Writing, is_next_due: bool = False) -> None:
        """Do what is next for the save under way, now that all ranks' words on it come to `writing`.

        With `is_next_due` the next save waits for it.
        """
        if self.is_idle:
            self._prepare()
        elif writing is Writing.FAILED:
            self._drop()
        elif writing is Writing.DONE and self._phase is _Phase.DROPPED:
            self._repeat_or_let_go(is_next_due)
        elif writing is Writing.DONE and self._phase is _Phase.FILES:
            self._begin_index()
        elif writing is Writing.DONE:
            self._finish()

    def save_now(self, is_on_cadence: bool = False) -> None:
        """Write the state while all ranks wait. A save under way is given up: this one is newer.

        Raises `StoreError` on every rank if one of them could not write, `UnequalRanksError` if their states differ.
        """
        self._give_up()
        save = self._start()
        save.hashes.read()
        own = (HostFile(file) for file in share_of(save.tensors.files, self._world))
        part = self._own_part(save, (file.filled_from(save.tensors) for file in own))
        index = save.index = self._make_index(save, self._write_now(save, part))
        if self._world.is_first:
            attempt(lambda: write_index(self._store, index), NEVER)
        save.stall_seconds = time.perf_counter() - save.began
        self._record(save, is_on_cadence)
        self._mark_saved()

    @property
    def is_beyond_repair(self) -> bool:
        """Whether a save that lost a writer could not be begun anew: the model is the best one, and has changed."""
        return self.is_saving_best and self._save is not None and self._save.step != self._state.step

    def lose_writer(self) -> None:
        """Give the save under way up: a rank that wrote a share of it is gone. It is begun anew, from a later state."""
        self._phase = _Phase.DROPPED
        self._writer.cancel()
        self._save, self.records.saved = None, NOTHING_SAVED

    @property
    def misses_only_the_index(self) -> bool:
        """Whether all files of the save under way are in the store."""
        return self._phase is _Phase.INDEX

    def deal_anew(self) -> None:
        """The ranks are others from here on, and so is what this one writes.

        An index that the first one did not live to put, as far as is known, is put by whoever is the first now.
        """
        self._snapshot.deal_anew()
        if self.misses_only_the_index and self._save is not None:
            self._save.part = None  # of what is in the buffers another rank has a share now
            self._write_index()

    def _start(self) -> _Save:
        """Read what is known of the steps since the last save."""
        began = time.perf_counter()
        self._state.curve.collect(self._state.step)
        sealed = self._state.seal_history(self._spec.run)
        if sealed is not None:
            self.records.add_part(sealed)
        path = checkpoint_path(self._spec.run, self._state.step, self._spec.fence)
        tensors, num_parts = self._tensors(), len(self.records.parts)
        hashes = StateHashes(tensors, share_of(tensors.files, self._world), self._world, self._trainer.device)
        return _Save(self._state.step, self._state.validated_step, path, tensors, hashes, num_parts, began)

    def _prepare(self) -> None:
        """Allocate the buffers once the optimizer has its state: after the first step, not within the first save."""
        if self._spec.checkpoint.background and not self._snapshot.is_prepared and self._trainer.optimization.has_state:
            self._snapshot.prepare(self._tensors().files)

    def _tensors(self) -> StateTensors:
        return StateTensors(self._trainer, leaves_out_frozen=bool(self._spec.frozen))

    def _own_part(self, save: _Save, files: Iterable[HostFile]) -> SavePart:
        if not self._world.is_first:
            return SavePart(save.path, files, note=save.hashes.add_file)
        state, history = canonical_json(self._state_dict()), self.records.parts.copy()
        return SavePart(save.path, files, state, history, self._next_ledger_part(), save.hashes.add_file)

    def _write_now(self, save: _Save, part: SavePart) -> WrittenPart:
        written, trouble = None, None
        try:
            written = self._writer.write(part, NEVER)
        except (StoreError, OSError) as error:
            trouble = str(error)
        trouble = first_trouble(self._world, trouble)
        if written is None or trouble is not None:
            raise StoreError(f"The checkpoint of step {save.step} could not be written: {trouble}")
        return written

    def _begin_index(self) -> None:
        assert self._save is not None
        self._save.index = self._make_index(self._save, self._writer.result())
        self._phase = _Phase.INDEX
        self._write_index()

    def _write_index(self) -> None:
        if self._world.is_first and self._save is not None and (index := self._save.index) is not None:
            self._writer.start(lambda given_up: attempt(lambda: write_index(self._store, index), given_up))

    def _finish(self) -> None:
        assert self._save is not None
        self._phase = _Phase.IDLE
        self._record(self._save, is_on_cadence=True)

    def _give_up(self) -> None:
        """Let go of the save under way; but one of which only the index is missing may have it. A collective."""
        if self._phase is _Phase.INDEX:
            trouble = first_trouble(self._world, None if self._writer.ends_well() else "the index was not written")
            if trouble is None:
                self._finish()
        self._writer.give_up()
        self._phase = _Phase.IDLE

    def _drop(self) -> None:
        """Report the save that failed on some rank, and have all threads stop. They are not waited for here."""
        assert self._save is not None
        self._phase = _Phase.DROPPED
        if self._world.is_first and not self._save.num_failures:
            reason = (
                self._writer.failure() or "another rank could not write its files; its error is in the segment's log"
            )
            self._reporter.save_failed(f"The checkpoint of step {self._save.step} could not be written: {reason}")
        self._save.num_failures += 1
        self._writer.cancel()

    def _repeat_or_let_go(self, is_next_due: bool) -> None:
        """No rank's thread is at the save that failed any more: its buffers still have the state."""
        save = self._save
        if save is None or save.part is None or not self.is_saving_best:
            if self.is_beyond_repair:
                self._reporter.noted(
                    f"The model of step {self._state.best_step:,}, the best so far, gets no checkpoint: its save "
                    "failed after a rank had died. Training goes on."
                )
            self._phase = _Phase.IDLE
        elif is_next_due and save.num_failures >= self._most_failures:
            self._phase = _Phase.IDLE
            self._reporter.noted(
                f"The model of step {save.step:,}, the best so far, gets no checkpoint: its save failed "
                f"{save.num_failures} times, and the next save is due. Training goes on."
            )
        else:
            self._begin_files(save.part)

    def _record(self, save: _Save, is_on_cadence: bool) -> None:
        """Report the new checkpoint, for promotion. What its ledger has is not written again."""
        assert save.index is not None
        self.records.note_saved(save.index, save.num_parts)
        self._trainer.consumption.forget_before(save.step)
        durable_seconds = time.perf_counter() - save.began
        if self._world.is_first:
            print(
                f"Saved step {save.step:,}: {save.index.num_bytes:,} bytes, training was paused for "
                f"{save.stall_seconds:.4f} s, durable after {durable_seconds:.3f} s.",
                flush=True,
            )
        if is_on_cadence:
            self.records.count(save.stall_seconds, durable_seconds, save.index.num_bytes)
        self._reporter.checkpointed(save.path, save.step)

    def _mark_saved(self) -> None:
        self.records.saved = (self._state.step, self._state.validated_step)

    def _state_dict(self) -> dict[str, object]:
        cursor = self._cursor(self._state.step)
        return self._state.state_dict() | {
            "cursor": cursor,
            "epoch": cursor // self._epoch_samples,
            "optimization": self._trainer.optimization.state_dict(),
        }

    def _cursor(self, step: int) -> int:
        return end_position(step, self._spec.train.batch_size, self._spec.rollbacks)

    def _next_ledger_part(self) -> tuple[LedgerHeader, pa.Table] | None:
        """The part from the last save to now. None where no step was made: a validation was made up for."""
        first_step = self.records.ledger_end
        if first_step == self._state.step:
            return None
        header = LedgerHeader(
            run=self._spec.run,
            fence=self._spec.fence,
            first_step=first_step,
            end_step=self._state.step,
            world_size=self._world.full_size,  # the same bytes, whoever is missing just then
            dataset_digest=self._spec.dataset_digest,
            previous=self.records.ledger,
            skipped=skipped_ranges(first_step, self._state.step, self._spec.rollbacks),
        )
        return header, self._trainer.consumption.table()

    def _make_index(self, save: _Save, written: WrittenPart) -> CheckpointIndex:
        """A collective: each rank knows the hashes of its own files.

        Raises `UnequalRanksError` on every rank alike: without an index there is no checkpoint.
        """
        save.hashes.require_equal(save.step)
        tensors_of_model = self._trainer.model.state_dict().keys()
        names = [*(file.name for file in save.tensors.files), STATE_NAME]
        own = [*map(written.files.get, names), written.ledger]
        *described, ledger = share_descriptions(own, self._world)
        return CheckpointIndex(
            run=self._spec.run,
            fence=self._spec.fence,
            step=save.step,
            cursor=self._cursor(save.step),
            dataset_digest=self._spec.dataset_digest,
            versions=read_versions(self._trainer.device),
            configuration=self._spec.model_dump(mode="json", include={"model", "train"}),
            ledger=self.records.ledger_with(save.step, ledger),
            constants=sorted({name for name, _ in self._trainer.model.named_buffers()} & tensors_of_model),
            files=dict(zip(names, described, strict=True)),
            frozen=self._spec.frozen,
        )
