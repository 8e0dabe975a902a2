"""The first weights of a run that begins with those of another one.

Invariant: every byte is hashed before it is used, and all ranks take the same ones. What start.json names is copied;
the rest stays random, as the seed makes it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.errors import CorruptObjectError
from storage.objects.digests import sha256_of_bytes, sha256_of_file
from storage.objects.store import Store
from training.specification import StartPoint

START_NAME = "start.json"
ADVICE = "Restore the file from a backup of the store, or begin a new run under another name."


@torch.no_grad()
def take_first_weights(model: nn.Module, store: Store, start: StartPoint) -> None:
    """Copy into `model` what the start says. Raises `CorruptObjectError` if a file is not what was written."""
    plan = _read_plan(store, start)
    origin: dict[str, Tensor] = {}
    for name, digest in plan["files"].items():
        origin |= load_file(_fetch_checked(store, f"{start.path}/{name}", digest))
    own = model.state_dict()
    for copy in plan["copies"]:
        _copy(own[copy["target"]], origin[copy["source"]], copy)


def _copy(target: Tensor, source: Tensor, copy: dict[str, Any]) -> None:
    """Whole, or the places `from` along `axis` to the places `to`."""
    source = source.to(target.device)
    if copy["axis"] is None:
        target.copy_(source)
        return
    places = torch.tensor(copy["to"], device=target.device), torch.tensor(copy["from"], device=target.device)
    target.index_copy_(copy["axis"], places[0], source.index_select(copy["axis"], places[1]))


def _read_plan(store: Store, start: StartPoint) -> dict[str, Any]:
    key = f"{start.path}/{START_NAME}"
    data = store.read(key)
    _require(store, key, sha256_of_bytes(data), start.digest)
    plan: dict[str, Any] = json.loads(data)
    return plan


def _fetch_checked(store: Store, key: str, digest: str) -> Path:
    path = store.fetch(key)
    _require(store, key, sha256_of_file(path), digest)
    return path


def _require(store: Store, key: str, found: str, expected: str) -> None:
    if found != expected:
        raise CorruptObjectError(
            f"{store.address}/{key} was changed after it was written: SHA-256 {expected[:16]}... expected, "
            f"{found[:16]}... found. The run's first weights are not to be had. {ADVICE}"
        )
