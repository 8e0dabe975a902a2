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
from collections.abc import Callable
from functools import partial
from typing import Any

from storage.checkpoints.checkpoints import CheckpointIndex, checkpoint_path, write_index
from storage.errors import StoreError
from storage.objects.store import Store
from storage.runs.ledger import LedgerPart
from training.checkpointing.contents import Contents
from training.checkpointing.exchange import first_trouble
from training.checkpointing.records import NO_STEP, NOTHING_SAVED, SaveRecords
from training.checkpointing.snapshot import Snapshot
from training.checkpointing.state_hashes import StateHashes
from training.checkpointing.state_tensors import HostFile, StateTensors, share_of, shares_of
from training.checkpointing.under_way import Fate, Phase, Save, SaveStanding
from training.checkpointing.writer import SECONDS_OF_ATTEMPTS, CheckpointWriter, SavePart, Writing, WrittenPart, attempt
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World

NEVER = threading.Event()
NOBODY = -1
# Of the best model's save while the next one waits for it, whatever `store_seconds` is.
FEWEST_FAILURES = 3


class Checkpointer:
    """Saves one run's training state. Its methods are called by all ranks alike, in the same order.

    With `can_lose_ranks` a save of the best model survives the death of a rank that writes a share of it.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        world: World,
        store: Store,
        trainer: Trainer,
        state: TrainingState,
        reporter: Reporter,
        samples: int,
        can_lose_ranks: bool = False,
    ) -> None:
        self.records = SaveRecords(spec)
        self._contents = Contents(spec, world, trainer, state, self.records, samples)
        self._spec = spec
        self._world = world
        self._store = store
        self._trainer = trainer
        self._state = state
        self._reporter = reporter
        self._reported_step = NO_STEP
        self._can_lose_ranks = can_lose_ranks
        self._writer = CheckpointWriter(store, spec.scratch_folder / f"save-{world.slot}")
        self._snapshot = Snapshot(world, trainer.device, trainer.optimization.optimizer)
        self._phase = Phase.IDLE
        self._save: Save | None = None
        # As many as the time for which a store is waited for takes: counted, since ranks' clocks would not agree.
        self._most_failures = max(FEWEST_FAILURES, math.ceil(spec.store_seconds / SECONDS_OF_ATTEMPTS))

    @property
    def is_idle(self) -> bool:
        """Whether a save may begin."""
        return self._phase is Phase.IDLE

    @property
    def is_saving_best(self) -> bool:
        """Whether the save under way is of the best model so far. The same on all ranks."""
        return not self.is_idle and self._save is not None and self._is_of_best(self._save)

    @property
    def writing(self) -> Writing:
        """State of the save under way on this rank, for the ranks to agree on."""
        if self._phase is Phase.DROPPED:
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
        shares = shares_of(save.tensors.files, self._world)
        other = self._world.second_holder_of
        is_held_twice = self._can_lose_ranks and save.size > 1 and self._is_of_best(save)
        self._snapshot.take(save.tensors, save.hashes, shares[other] if is_held_twice else None)
        save.parts = {save.rank: self._contents.part_of(save, save.rank, self._snapshot.own)}
        if is_held_twice:
            save.second, save.second_share = self._contents.part_of(save, other, self._snapshot.second), other
        self._begin_files(save)
        self._mark_saved()
        save.stall_seconds = time.perf_counter() - save.began

    def _is_of_best(self, save: Save) -> bool:
        is_kept = self._spec.checkpoint.keep_best > 0
        return is_kept and save.step == self._state.best_step and save.validated_step == save.step

    def _begin_files(self, save: Save) -> None:
        self._writer.start(*(self._job_of(save, share) for share in save.parts))
        self._phase = Phase.FILES

    def _job_of(self, save: Save, share: int) -> Callable[[threading.Event], WrittenPart]:
        part = save.parts[share]
        write = self._writer.write if share == save.rank else self._writer.write_for_another

        def finish_and_write(given_up: threading.Event) -> WrittenPart:
            self._snapshot.finish()
            return write(part, given_up)

        return finish_and_write

    def advance(self, writing: Writing, is_next_due: bool = False) -> None:
        """Do what is next for the save under way, now that all ranks' words on it come to `writing`.

        With `is_next_due` the next save waits for it.
        """
        if self.is_idle:
            self._prepare()
        elif writing is Writing.FAILED:
            self._drop()
        elif writing is Writing.DONE and self._phase is Phase.DROPPED:
            self._repeat_or_let_go(is_next_due)
        elif writing is Writing.DONE and self._phase is Phase.FILES:
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
        part = self._contents.part_of(save, self._world.rank, (file.filled_from(save.tensors) for file in own))
        index = save.index = self._contents.make_index(save, [self._write_now(save, part)])
        if self._world.is_first:
            attempt(lambda: write_index(self._store, index), NEVER)
        save.stall_seconds = time.perf_counter() - save.began
        self._record(save, is_on_cadence)
        self._mark_saved()

    def standing(self) -> SaveStanding:
        """What this rank has of the save under way. Waits until nothing that training could change is read for it."""
        self._snapshot.wait_until_read()
        save, completed = self._save, self.records.completed_step
        if self.is_idle or save is None:
            return SaveStanding(phase=self._phase, completed_step=completed)
        return SaveStanding(
            phase=self._phase,
            step=save.step,
            rank=save.rank,
            size=save.size,
            second_share=save.second_share if save.second is not None and self._snapshot.holds_second else -1,
            is_beyond_repair=int(self.is_saving_best and save.step != self._state.step),
            completed_step=completed,
        )

    def end_with_others(self, is_complete: bool) -> None:
        """The save under way is over, as it is already for another rank: its checkpoint is there, or it was let go."""
        if is_complete and self._phase is Phase.INDEX:
            self._finish()
        elif not self.is_idle:
            self._writer.give_up()
            self._phase = Phase.IDLE

    def tell_save(self) -> dict[str, Any]:
        """What others have to know to go on with the save under way."""
        assert self._save is not None
        return self._save.tell()

    def go_on_saving(self, told: dict[str, Any], fate: Fate) -> None:
        """Go on with the save that another rank has `told` of: with new ranks, and with the shares of those that died.

        The index, where there is one, is put by whoever is the first rank now; it may be there.
        """
        if self.is_idle or self._save is None:
            self._save = self._save_told(told)
        save = self._save
        self.records.saved = (save.step, save.validated_step)
        save.num_failures, save.can_be_repeated = told["num_failures"], fate.writers is not None
        save.index = None if told["index"] is None else CheckpointIndex.model_validate(told["index"])
        if fate.phase is Phase.DROPPED and self._phase is not Phase.DROPPED:
            self._writer.cancel()
        self._phase = fate.phase
        for share, writer in enumerate(fate.writers or []):
            if writer == save.rank and share not in save.parts:
                assert save.second is not None
                save.parts[share] = save.second
                if fate.phase is Phase.FILES:
                    self._writer.add(self._job_of(save, share))
        if fate.phase is Phase.INDEX:
            self._write_index()

    def lose_writer(self) -> None:
        """Give the save under way up: a rank that wrote a share of it is gone. It is begun anew, from a later state."""
        self._phase = Phase.DROPPED
        self._writer.cancel()
        self._save, self.records.saved = None, NOTHING_SAVED

    def deal_anew(self) -> None:
        """The ranks are others from here on, and so is what this one writes of the next save.

        A checkpoint that was completed at this very boundary is reported: the first rank may not have lived to do so.
        """
        self._snapshot.deal_anew()
        if self.records.completed_at == self._state.step:
            self._report(self.records.completed_step)

    def _report(self, step: int) -> None:
        """For promotion, once."""
        if self._world.is_first and self._reported_step != step:
            self._reported_step = step
            self._reporter.checkpointed(checkpoint_path(self._spec.run, step, self._spec.fence), step)

    def _save_told(self, told: dict[str, Any]) -> Save:
        """A save of which this rank has nothing: it did not begin it."""
        began = time.perf_counter() - told["seconds_ago"]
        save = self._new_save(told["step"], told["validated_step"], told["num_parts"], began)
        save.hashes.skip()
        save.rank, save.stall_seconds = NOBODY, told["stall_seconds"]
        self._writer.give_up()
        return save

    def _start(self) -> Save:
        """Read what is known of the steps since the last save."""
        began = time.perf_counter()
        self._state.curve.collect(self._state.step)
        sealed = self._state.seal_history(self._spec.run)
        if sealed is not None:
            self.records.add_part(sealed)
        return self._new_save(self._state.step, self._state.validated_step, len(self.records.parts), began)

    def _new_save(self, step: int, validated_step: int | None, num_parts: int, began: float) -> Save:
        tensors = self._tensors()
        own = share_of(tensors.files, self._world)
        return Save(
            step=step,
            validated_step=validated_step,
            path=checkpoint_path(self._spec.run, step, self._spec.fence),
            tensors=tensors,
            hashes=StateHashes(tensors, own, self._world, self._trainer.device),
            num_parts=num_parts,
            began=began,
            rank=self._world.rank,
            size=self._world.size,
        )

    def _prepare(self) -> None:
        """Allocate the buffers once the optimizer has its state: after the first step, not within the first save."""
        if self._spec.checkpoint.background and not self._snapshot.is_prepared and self._trainer.optimization.has_state:
            self._snapshot.prepare(self._tensors().files)

    def _tensors(self) -> StateTensors:
        return StateTensors(self._trainer, leaves_out_frozen=bool(self._spec.frozen))

    def _write_now(self, save: Save, part: SavePart) -> WrittenPart:
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
        self._save.index = self._contents.make_index(self._save, self._writer.results())
        self._phase = Phase.INDEX
        self._write_index()

    def _write_index(self) -> None:
        if self._world.is_first and self._save is not None and (index := self._save.index) is not None:
            self._writer.start(partial(attempt, lambda: write_index(self._store, index)))

    def _finish(self) -> None:
        assert self._save is not None
        self._record(self._save, is_on_cadence=True)
        self._be_idle()

    def _be_idle(self) -> None:
        """Nobody reads the copies any more."""
        self._phase = Phase.IDLE
        self._snapshot.let_go_of_second()
        if self._save is not None:
            self._save.release()

    def _give_up(self) -> None:
        """Let go of the save under way; but one of which only the index is missing may have it. A collective."""
        if self._phase is Phase.INDEX:
            trouble = first_trouble(self._world, None if self._writer.ends_well() else "the index was not written")
            if trouble is None:
                self._finish()
        self._writer.give_up()
        self._phase = Phase.IDLE

    def _drop(self) -> None:
        """Report the save that failed on some rank, and have all threads stop. They are not waited for here."""
        assert self._save is not None
        self._phase = Phase.DROPPED
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
        if save is None or not self.is_saving_best:
            self._be_idle()
        elif not save.can_be_repeated:
            self._be_idle()
            self._reporter.noted(
                f"The model of step {save.step:,}, the best so far, gets no checkpoint: its save failed after "
                "ranks had died. Training goes on."
            )
        elif is_next_due and save.num_failures >= self._most_failures:
            self._be_idle()
            self._reporter.noted(
                f"The model of step {save.step:,}, the best so far, gets no checkpoint: its save failed "
                f"{save.num_failures} times, and the next save is due. Training goes on."
            )
        else:
            self._begin_files(save)

    def _record(self, save: Save, is_on_cadence: bool) -> None:
        """Report the new checkpoint, for promotion. What its ledger has is not written again."""
        assert save.index is not None
        self.records.note_saved(save.index, save.num_parts, self._state.step)
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
        self._report(save.step)

    def _mark_saved(self) -> None:
        self.records.saved = (self._state.step, self._state.validated_step)
