"""A model's signature: name, type and shape of each of its tensors; and how that of a checkpoint differs from it.

Invariant: nothing is converted or left out to make a checkpoint fit: what is not the same tensor for tensor is refused.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from storage.checkpoints.tensor_files import TensorEntry
from storage.checkpoints.tensor_layout import TensorKind
from storage.errors import IncompatibleRunError
from training.checkpointing.state_tensors import kind_of

Signature = Mapping[str, TensorKind]
MAX_DIFFERENCES_SHOWN = 10


def signature_of_model(tensors: Mapping[str, Tensor]) -> Signature:
    """The signature of live tensors, by their names."""
    return {name: kind_of(tensor) for name, tensor in tensors.items()}


def signature_of_file(entries: Iterable[TensorEntry]) -> Signature:
    """The signature of what a safetensors file holds."""
    return {entry.name: TensorKind(entry.dtype, entry.shape) for entry in entries}


def describe_differences(before: Signature, now: Signature) -> list[str]:
    """For every tensor that is not the same, what the checkpoint has and what the model has; in the order of names."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{name}: {_describe(before.get(name))} in the checkpoint, {_describe(now.get(name))} in the model"
        for name in names
        if before.get(name) != now.get(name)
    ]


def require_same_signature(path: str, before: Signature, now: Signature) -> None:
    """Raise `IncompatibleRunError` if the checkpoint in `path`, with signature `before`, is of another model."""
    differences = describe_differences(before, now)
    if not differences:
        return
    shown = [f"  {difference}" for difference in differences[:MAX_DIFFERENCES_SHOWN]]
    num_more = len(differences) - len(shown)
    shown += [f"  and {num_more:,} more of {len(before.keys() | now.keys()):,} tensors"] if num_more else []
    raise IncompatibleRunError(
        f"The checkpoint {path} does not fit the configured model:\n"
        + "\n".join(shown)
        + "\nContinue with the version of Holdfast and the [model] configuration that the run was "
        "started with, or start a new run."
    )


def _describe(kind: TensorKind | None) -> str:
    return "nothing" if kind is None else f"{kind.dtype} {list(kind.shape)}"
