"""What the saves of a segment have left so far, besides the checkpoints; the same on every rank.

Invariant: what a checkpoint's ledger and history have is not written again; what none has yet is here, and on the way
to the next one whichever ranks live.
"""

from typing import Any

from storage.checkpoints.checkpoints import CheckpointFile, CheckpointIndex
from storage.objects.history import HistoryPart, SealedPart
from storage.runs.ledger import LedgerPart, ledger_key
from storage.runs.run_state import SaveFigures
from training.spec import SegmentSpec

NO_STEP = -1
NOTHING_SAVED = (NO_STEP, None)


class SaveRecords:
    """The ledger's newest part, parts of the history that no checkpoint vouches for, and of which state a save began.

    The first weights need none: the seed decides them.
    """

    def __init__(self, spec: SegmentSpec) -> None:
        self.figures: SaveFigures | None = None  # of the saves on cadence
        self.saved: tuple[int, int | None] = (0, None)  # step, and step of its validation
        self.ledger: LedgerPart | None = None
        self.parts: list[SealedPart] = []
        self.num_sealed = 0  # parts of the history that were made in this segment
        self.completed_step = NO_STEP  # of the newest checkpoint of this segment
        self.completed_at = NO_STEP  # the step at whose boundary all came to know of it
        self._spec = spec

    @property
    def ledger_end(self) -> int:
        """The ledger has all steps before this one."""
        return self.ledger.end_step if self.ledger else 0

    def ledger_with(self, step: int, added: CheckpointFile) -> LedgerPart | None:
        """The newest part of the ledger that a save of `step` names: the one that it `added`, if it did."""
        if self.ledger_end == step:
            return self.ledger
        return LedgerPart(
            key=ledger_key(self._spec.run, self.ledger_end, step, self._spec.fence),
            sha256=added.sha256,
            num_bytes=added.num_bytes,
            fence=self._spec.fence,
            first_step=self.ledger_end,
            end_step=step,
        )

    def add_part(self, sealed: SealedPart) -> None:
        """The state builds on this part of the history from here on."""
        self.parts.append(sealed)
        self.num_sealed += 1

    def note_saved(self, index: CheckpointIndex, num_parts: int, at: int) -> None:
        """A checkpoint is complete, which has the first `num_parts` parts of the history; known `at` this step."""
        self.ledger = index.ledger
        self.completed_step, self.completed_at = index.step, at
        del self.parts[:num_parts]

    def count(self, stall_seconds: float, durable_seconds: float, num_bytes: int) -> None:
        """Count a save on cadence."""
        before = self.figures or SaveFigures(count=0, stall_seconds=0, durable_seconds=0, num_bytes=0)
        self.figures = SaveFigures(
            count=before.count + 1,
            stall_seconds=round(before.stall_seconds + stall_seconds, 6),
            durable_seconds=round(before.durable_seconds + durable_seconds, 6),
            num_bytes=num_bytes,
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "figures": self.figures.model_dump(mode="json") if self.figures else None,
            "saved": self.saved,
            "ledger": self.ledger.model_dump(mode="json") if self.ledger else None,
            "num_sealed": self.num_sealed,
            "completed": (self.completed_step, self.completed_at),
            "parts": [{"part": s.part.model_dump(mode="json"), "data": s.data.decode()} for s in self.parts],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step, validated_step = state["saved"]
        self.saved = (step, validated_step)
        self.figures = SaveFigures.model_validate(state["figures"]) if state["figures"] else None
        self.ledger = LedgerPart.model_validate(state["ledger"]) if state["ledger"] else None
        self.num_sealed = state["num_sealed"]
        self.completed_step, self.completed_at = state["completed"]
        self.parts = [SealedPart(HistoryPart.model_validate(s["part"]), s["data"].encode()) for s in state["parts"]]
