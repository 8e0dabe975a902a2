"""Which implementation a data set's target has. A new kind: its file beside this one, and its line here."""

from collections.abc import Callable, Sequence

from storage.datasets import Target
from storage.target_kinds import KindName
from training.targets.binary import Binary
from training.targets.kind import TargetKind
from training.targets.multiclass import Multiclass
from training.targets.multilabel import Multilabel

KINDS: dict[KindName, Callable[[Sequence[str], Sequence[str]], TargetKind]] = {
    "multiclass": Multiclass,
    "binary": Binary,
    "multilabel": Multilabel,
}


def kind_of(target: Target, extra_metrics: Sequence[str] = ()) -> TargetKind:
    """What training computes for this target, and which metrics beside the usual ones."""
    return KINDS[target.kind](target.classes, extra_metrics)
