"""What one rank works with in a segment, made by `building.py` and used by the loop.

Invariant: what is not a part of its own here, such as whether a save is owed, is the same on all ranks at a boundary.
"""

import time
from dataclasses import dataclass, field

from training.agreement import Agreement
from training.batches.source import BatchSource
from training.checkpointing.restoring import Restorer
from training.checkpointing.saves import Checkpointer
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.metrics.validation import Validator
from training.spec import SegmentSpec
from training.stopping import StopFlag
from training.trainer import Trainer
from training.views.membership import Membership
from training.world import World


@dataclass
class Segment:
    """What one rank works with."""

    spec: SegmentSpec
    world: World
    state: TrainingState
    source: BatchSource
    trainer: Trainer
    validator: Validator
    checkpointer: Checkpointer
    restorer: Restorer
    agreement: Agreement
    reporter: Reporter
    headline: str
    flag: StopFlag
    membership: Membership
    first_step: int = 0
    last_save: float = field(default_factory=time.monotonic)
    save_is_owed: bool = False
    has_reported_save: bool = False
    has_waited_for_save: bool = False
    has_noted_rounding: bool = False
