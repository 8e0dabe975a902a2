"""A run that nobody trained: manifest and ledger of three segments, as the pure functions ask for it, or forged.

Invariant: parts are written and chained by the code that training uses, so that a forgery shows in its content alone.
"""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from storage.checkpoints.checkpoints import CheckpointIndex, write_index
from storage.datasets import DatasetManifest, dataset_sha256
from storage.objects.store import Store
from storage.runs.holders import this_process
from storage.runs.ledger import LEDGER_SCHEMA, LedgerHeader, LedgerPart, write_ledger_part
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.positions import end_position, skipped_ranges
from storage.runs.rollbacks.rolling_back import roll_back
from storage.runs.run_state import CheckpointRecord, Divergence, RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote, take_lease
from tasks.configuration.run import RunConfig
from tests.helpers.datasets import GROUP_ROWS
from tests.helpers.parquet import text_config
from tests.helpers.runs import record_of
from training.data.order import RowOrder, SampleOrder
from training.data.reading import SampleReader
from training.models.source import microbatch_cut

STEPS, BATCH_SIZE, MICROBATCHES, SEED = 40, 24, 5, 11
# Of each segment: the steps of its promoted checkpoints, the last step it came to, its outcome, its ranks.
SEGMENTS = (((7, 14), 17, "lost", 2), ((20, 27), 27, "preempted", 3), ((34, 40), 40, "completed", 1))

# What the second segment does instead if the run `diverges`: it fails to finish this step, counted from 1, and the run
# goes back so many steps.
DIVERGED_STEP, ROLLBACK_STEPS = 30, 6

Microbatch = dict[str, Any]  # step, microbatch, rows


def row_id(row: int) -> str:
    """The id that the small data set has for a row of its training split."""
    return f"train-{row}"


@dataclass
class LedgerRun:
    """What goes into the run's ledger. Change it, then `write` it."""

    store: Store
    folder: Path
    dataset: DatasetManifest
    name: str = "run"
    seed: int = SEED
    microbatches: list[Microbatch] = field(default_factory=list)
    id_of: Callable[[int], str] = row_id
    # What becomes of the part that was rolled back: nothing; it stands in the chain beside the one that replaced it;
    # or it stands there instead of its first steps.
    void_part: Literal["void", "beside", "instead"] = "void"
    # By the first step of a part: what it says about itself, and what the chain says about it.
    header_changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    part_changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    parts: list[LedgerPart] = field(default_factory=list)
    diverges: bool = False

    def __post_init__(self) -> None:
        self.microbatches = self.due_microbatches(self.diverges)
        self.manifest = Manifest(self.store, self.name)

    @property
    def config(self) -> RunConfig:
        train = {"steps": STEPS, "batch_size": BATCH_SIZE, "microbatches": MICROBATCHES, "seed": SEED}
        return RunConfig.model_validate(
            {"run": self.name, "store": self.store.address, "data": text_config("data").model_dump(), "train": train}
        )

    def due_microbatches(self, is_rolled_back: bool = False) -> list[Microbatch]:
        """The microbatches of all steps, by the pure functions, without the samples that a rollback leaves out."""
        resume_step = DIVERGED_STEP - ROLLBACK_STEPS
        left_out = ROLLBACK_STEPS * BATCH_SIZE if is_rolled_back else 0
        with tempfile.TemporaryDirectory() as folder:
            reader = SampleReader(self.store, self.dataset, "train", Path(folder))
            lengths = reader.read(RowOrder(reader.num_rows, GROUP_ROWS), 0, reader.num_rows).lengths
        order, cut = (
            SampleOrder(len(lengths), GROUP_ROWS, self.seed),
            microbatch_cut(self.config.model, self.config.train),
        )
        microbatches = []
        for step in range(STEPS):
            rows = order.rows(step * BATCH_SIZE + (left_out if step >= resume_step else 0), BATCH_SIZE)
            positions = cut.cut(lengths[rows], MICROBATCHES)
            microbatches += [
                {"step": step, "microbatch": i, "rows": rows[microbatch].tolist()}
                for i, microbatch in enumerate(positions)
            ]
        return microbatches

    def rows(self, step: int, microbatch: int) -> list[int]:
        """The rows of one microbatch, to be read or changed."""
        (found,) = (
            entry["rows"] for entry in self.microbatches if (entry["step"], entry["microbatch"]) == (step, microbatch)
        )
        rows: list[int] = found
        return rows

    def rows_of(self, step: int) -> list[int]:
        """The rows of a step, microbatch by microbatch."""
        return [row for entry in self.microbatches if entry["step"] == step for row in entry["rows"]]

    def created(self) -> "LedgerRun":
        """Begin the run, without a segment."""
        state = RunState(
            run=self.name,
            created_at=1.0,
            config=self.config.model_dump(mode="json"),
            dataset_digest=self.dataset.digest,
            dataset_sha256=dataset_sha256(self.manifest.store, self.dataset.digest),
            steps_total=STEPS,
        )
        self.manifest.create(state)
        return self

    def write(self) -> "LedgerRun":
        """Put manifest, parts and checkpoints, as the segments would have."""
        self.created()
        for ends, last_step, outcome, ranks in SEGMENTS:
            fence = self.begin(ranks)
            first_step = self.promoted_step
            for end in ends:
                self.save(end, fence, ranks)
            if self.diverges and outcome == "preempted":
                self._diverge(fence, first_step, ranks)
            else:
                self._end(fence, first_step, last_step, outcome, ranks)
        return self

    def begin(self, ranks: int) -> int:
        """Take the lease; its fence."""
        lease = self.manifest.commit("segment began", take_lease(this_process(), ranks)).state.lease
        assert lease is not None
        return lease.fence

    def save(self, end_step: int, fence: int, ranks: int) -> None:
        """A part from the promoted step on, with the checkpoint that ends it, promoted."""
        is_after_void = self.void_part == "instead" and self.parts
        first_step = self.parts[-1].end_step if is_after_void else self.promoted_step
        part = self.put_part(first_step, end_step, fence, ranks)
        self.parts.append(part.model_copy(update=self.part_changes.get(first_step, {})))
        self.manifest.commit("promoted", promote(self.put_checkpoint(end_step, fence, part), RetentionPolicy(newest=3)))

    def put_checkpoint(self, step: int, fence: int, ledger: LedgerPart | None) -> CheckpointRecord:
        """A checkpoint without files; how the manifest would name it."""
        index = CheckpointIndex(
            run=self.name,
            fence=fence,
            step=step,
            cursor=end_position(step, BATCH_SIZE, self.manifest.load_head().state.rollbacks),
            dataset_digest=self.dataset.digest,
            versions={},
            ledger=ledger,
            files={},
        )
        return record_of(write_index(self.store, index))

    def promote_at_once(self, record: CheckpointRecord) -> None:
        """Make a checkpoint the resume point, without asking whether that may be."""
        change = {"promoted": record, "kept": [record]}
        self.manifest.commit("forged", lambda state, _: state.model_copy(update=change))

    @property
    def promoted_step(self) -> int:
        promoted = self.manifest.load_head().state.promoted
        return promoted.step if promoted else 0

    def put_part(self, first_step: int, end_step: int, fence: int, ranks: int) -> LedgerPart:
        """A part after those of the chain; it counts only once something names it."""
        header = LedgerHeader(
            run=self.name,
            fence=fence,
            first_step=first_step,
            end_step=end_step,
            world_size=ranks,
            dataset_digest=self.dataset.digest,
            previous=self.parts[-1] if self.parts else None,
            skipped=skipped_ranges(first_step, end_step, self.manifest.load_head().state.rollbacks),
        ).model_copy(update=self.header_changes.get(first_step, {}))
        entries = [
            {"ids_md5": self._md5(entry), **entry}
            for entry in self.microbatches
            if first_step <= entry["step"] < end_step
        ]
        # A store may keep the very file that it is given: each part has a folder of its own.
        folder = self.folder / f"{self.name}-{first_step}-{fence}"
        folder.mkdir(parents=True)
        return write_ledger_part(self.store, header, pa.Table.from_pylist(entries, schema=LEDGER_SCHEMA), folder)

    def _md5(self, entry: Microbatch) -> bytes:
        return hashlib.md5("\x1f".join(map(self.id_of, entry["rows"])).encode()).digest()

    def _diverge(self, fence: int, first_step: int, ranks: int) -> None:
        """End a segment as diverged, and roll the run back."""
        self._end(fence, first_step, DIVERGED_STEP, "diverged", ranks)
        change = roll_back(fence, ROLLBACK_STEPS, 1.0, BATCH_SIZE)
        self.manifest.commit("rolled back", change)
        self.parts = [part for part in self.parts if part.end_step <= self.promoted_step]

    def _end(self, fence: int, first_step: int, last_step: int, outcome: Any, ranks: int) -> None:
        step = self.promoted_step
        if last_step > step:
            void = self.put_part(step, last_step, fence, ranks)
            self.parts += [] if self.void_part == "void" else [void]
        record = SegmentRecord(
            fence=fence,
            outcome=outcome,
            cause="",
            first_step=first_step,
            last_step=last_step,
            world_size=ranks,
            planned_steps=1000,
            started_at=1.0,
            seconds=1.0,
            steps_lost=last_step - step,
            phases={},
            divergence=Divergence(kind="loss", step=last_step) if outcome == "diverged" else None,
        )
        self.manifest.commit("segment ended", end_segment(record))
