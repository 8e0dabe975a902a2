"""What a model is tried on before a run's first step.

Invariant: plain data. What is asked of a model is the matter of its source.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.datasets import DatasetManifest
from training.batches.tensors import Microbatch
from training.models.objective import Objective
from training.models.precision import Precision
from training.spec import SegmentSpec
from training.world import World


@dataclass(frozen=True)
class Trial:
    """What a rank has at hand; `microbatches` gives those of its next step, and `note` is for people."""

    spec: SegmentSpec
    world: World
    dataset: DatasetManifest
    precision: Precision
    objective: Objective
    microbatches: Callable[[], Sequence[Microbatch]]
    note: Callable[[str], object]
