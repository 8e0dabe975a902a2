"""The signature of a model or an optimizer: name, type and shape of each tensor; and how that of a checkpoint differs.

Invariant: nothing is converted or left out to make a checkpoint fit: what is not the same tensor for tensor is refused.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from storage.checkpoints.tensor_files import TensorEntry
from storage.checkpoints.tensor_layout import TensorKind
from storage.errors import IncompatibleRunError
from training.optim.optimizer import StateTensor
from training.tensor_files import DTYPES, kind_of

Signature = Mapping[str, TensorKind]
MAX_DIFFERENCES_SHOWN = 10


def signature_of_model(tensors: Mapping[str, Tensor]) -> Signature:
    """The signature of live tensors, by their names."""
    return {name: kind_of(tensor) for name, tensor in tensors.items()}


def signature_of_optimizer(tensors: Mapping[str, StateTensor]) -> Signature:
    """The signature of what an optimizer will keep."""
    return {name: TensorKind(DTYPES[tensor.dtype], tensor.shape) for name, tensor in tensors.items()}


def signature_of_file(entries: Iterable[TensorEntry]) -> Signature:
    """The signature of what a safetensors file holds."""
    return {entry.name: TensorKind(entry.dtype, entry.shape) for entry in entries}


def describe_differences(before: Signature, now: Signature, what: str = "model") -> list[str]:
    """Differences by tensor, in the order of names: what the checkpoint has, and what is configured."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{name}: {_describe(before.get(name))} in the checkpoint, {_describe(now.get(name))} in the {what}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def require_same_signature(path: str, before: Signature, now: Signature) -> None:
    """Raise `IncompatibleRunError` if the checkpoint in `path`, with signature `before`, is of another model."""
    differences = describe_differences(before, now)
    if not differences:
        return
    lines = [
        f"The checkpoint {path} does not fit the configured model:",
        *_shorten(differences, len(before.keys() | now.keys())),
        "Continue with the version of Holdfast and the [model] configuration that the run was started with, or start a "
        "new run.",
    ]
    raise IncompatibleRunError("\n".join(lines))


def require_same_optimizer(path: str, of: str | None, before: Signature, configured: str, now: Signature) -> None:
    """Raise `IncompatibleRunError` if the checkpoint in `path` has the state of another optimizer.

    `of` and `configured` are their names; that of the checkpoint is None where it has none. No tensor at all is the
    state before the first change of the weights, which an fp16 overflow can put off.
    """
    differences = describe_differences(before, now, "optimizer") if before else []
    if not differences and of in (None, configured):
        return
    names = f"train.optimizer is {configured!r}" + ("" if of is None else f", and the run was trained with {of!r}")
    lines = [
        f"The checkpoint {path} does not fit the configured optimizer: {names}.",
        *_shorten(differences, len(before.keys() | now.keys())),
        "Restore [train] as it was when the run began, or start a new run.",
    ]
    raise IncompatibleRunError("\n".join(lines))


def _shorten(differences: Sequence[str], num_tensors: int) -> list[str]:
    """One line each, of the first ones."""
    shown = [f"  {difference}" for difference in differences[:MAX_DIFFERENCES_SHOWN]]
    num_more = len(differences) - len(shown)
    return shown + ([f"  and {num_more:,} more of {num_tensors:,} tensors"] if num_more else [])


def _describe(kind: TensorKind | None) -> str:
    return "nothing" if kind is None else f"{kind.dtype} {list(kind.shape)}"
