"""What a checkpoint has besides tensors, and who writes which part of it.

Invariant: the same state gives the same bytes, whichever rank writes them, and whoever is missing just then.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from storage.checkpoints.checkpoints import STATE_NAME, CheckpointIndex
from storage.objects.digests import canonical_json
from storage.runs.code_version import own_version
from storage.runs.ledger import LedgerHeader
from storage.runs.rollbacks.positions import end_position, skipped_ranges
from training.checkpointing.exchange import share_descriptions
from training.checkpointing.records import SaveRecords
from training.checkpointing.state_tensors import HostFile
from training.checkpointing.under_way import Save
from training.checkpointing.versions import read_versions
from training.checkpointing.writer import SavePart, WrittenPart
from training.metrics.training_state import TrainingState
from training.spec import SegmentSpec
from training.trainer import Trainer
from training.world import World


class Contents:
    """What the saves of one rank are made of. An epoch has so many `samples`."""

    def __init__(
        self,
        spec: SegmentSpec,
        world: World,
        trainer: Trainer,
        state: TrainingState,
        records: SaveRecords,
        samples: int,
    ) -> None:
        self._spec = spec
        self._world = world
        self._trainer = trainer
        self._state = state
        self._records = records
        self._epoch_samples = samples

    def part_of(self, save: Save, share: int, files: Iterable[HostFile]) -> SavePart:
        """The share of the rank with this number, whose `files` these are. The first one has what is no tensor, too."""
        if share > 0:
            return SavePart(save.path, files, note=save.hashes.add_file)
        state, history = canonical_json(self._state_dict()), self._records.parts.copy()
        return SavePart(save.path, files, state, history, self._next_ledger_part(), save.hashes.add_file)

    def make_index(self, save: Save, written: Sequence[WrittenPart]) -> CheckpointIndex:
        """A collective: each rank knows the hashes of the files that it has `written`.

        Raises `UnequalRanksError` on every rank alike: without an index there is no checkpoint.
        """
        save.hashes.require_equal(save.step)
        tensors_of_model = self._trainer.model.state_dict().keys()
        names = [*(file.name for file in save.tensors.files), STATE_NAME]
        files = {name: file for part in written for name, file in part.files.items()}
        added = next((part.ledger for part in written if part.ledger is not None), None)
        *described, ledger = share_descriptions([*map(files.get, names), added], self._world)
        assert all(file.num_bytes for file in described), "a share was written by nobody"
        return CheckpointIndex(
            run=self._spec.run,
            fence=self._spec.fence,
            step=save.step,
            cursor=self._cursor(save.step),
            dataset_digest=self._spec.dataset_digest,
            versions=read_versions(self._trainer.device),
            holdfast=own_version(),
            configuration=self._spec.model_dump(mode="json", include={"model", "train"}),
            ledger=self._records.ledger_with(save.step, ledger),
            constants=sorted({name for name, _ in self._trainer.model.named_buffers()} & tensors_of_model),
            files=dict(zip(names, described, strict=True)),
            frozen=self._spec.frozen,
        )

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
        first_step = self._records.ledger_end
        if first_step == self._state.step:
            return None
        header = LedgerHeader(
            run=self._spec.run,
            fence=self._spec.fence,
            first_step=first_step,
            end_step=self._state.step,
            world_size=self._world.full_size,  # the same bytes, whoever is missing just then
            dataset_digest=self._spec.dataset_digest,
            previous=self._records.ledger,
            skipped=skipped_ranges(first_step, self._state.step, self._spec.rollbacks),
        )
        return header, self._trainer.consumption.table()
