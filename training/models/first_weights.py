"""The first weights of a run that begins with those of another one.

Invariant: every byte is hashed before it is used, and all ranks take the same ones. What start.json names is copied;
the rest stays random, as the seed makes it. What is not trained stands in files of its own, which checkpoints go by.
"""

from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.errors import IncompatibleRunError
from storage.first_weights import START_NAME, read_start, require_hash
from storage.objects.digests import sha256_of_file
from storage.objects.readable import reading
from storage.objects.store import Store
from training.models.frozen import frozen_names
from training.spec import StartPoint


@torch.no_grad()
def take_first_weights(model: nn.Module, store: Store, start: StartPoint) -> None:
    """Copy into `model` what start.json names; once more is the same.

    Raises `CorruptObjectError` if a file is not what was written, `IncompatibleRunError` if other weights are trained
    than when the run began, and what `reading` raises.
    """
    with reading(store, f"{start.path}/{START_NAME}"):
        plan = read_start(store, start.path, start.digest)
    origin: dict[str, Tensor] = {}
    frozen, named = set[str](), {file.key for file in start.frozen}
    for name, digest in plan["files"].items():
        key = f"{start.path}/{name}"
        with reading(store, key):
            path = store.fetch(key)
            require_hash(store, key, sha256_of_file(path), digest)
            found = load_file(path)
        origin |= found
        frozen |= found.keys() if key in named else set()
    if named:
        _require_same_frozen(frozen, frozen_names(model))
    own = model.state_dict()
    for copy in plan["copies"]:
        _copy(own[copy["target"]], origin[copy["source"]], copy)


def _require_same_frozen(before: set[str], now: set[str]) -> None:
    other = sorted(before ^ now)
    if other:
        raise IncompatibleRunError(
            f"Other weights are trained than when the run began. The first that differs is {other[0]}, of "
            f"{len(other)}. Continue with the versions of Holdfast and of its libraries that the run was started with, "
            "or start a new run."
        )


def _copy(target: Tensor, source: Tensor, copy: dict[str, Any]) -> None:
    """Copy the whole tensor, or the indices `from` along `axis` to the indices `to`."""
    source = source.to(target.device)
    if copy["axis"] is None:
        target.copy_(source)
        return
    indices = torch.tensor(copy["to"], device=target.device), torch.tensor(copy["from"], device=target.device)
    target.index_copy_(copy["axis"], indices[0], source.index_select(copy["axis"], indices[1]))
