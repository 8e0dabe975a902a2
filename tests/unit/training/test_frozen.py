"""Weights that are not trained are taken from beside the checkpoints as they were written, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage.errors import CorruptObjectError, IncompatibleRunError
from storage.first_weights import START_NAME
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.local_store import LocalStore
from storage.runs.run_records import FrozenFile
from tests.helpers.runs import make_checkpoint, put_frozen
from training.checkpointing import restoring
from training.checkpointing.restoring import load_weights
from training.models.first_weights import take_first_weights
from training.spec import ResumePoint, StartPoint


class Small(nn.Module):
    """With the tensors of `make_checkpoint` and `put_frozen`."""

    def __init__(self, trains_embeddings: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(16, 4)), nn.Parameter(torch.zeros(4))
        self.embeddings = nn.Parameter(torch.zeros(3, 4), requires_grad=trains_embeddings)


@pytest.fixture
def frozen(store: LocalStore, tmp_path: Path) -> FrozenFile:
    return put_frozen(store, tmp_path / "start")


def point_of(store: LocalStore, folder: Path, *frozen: FrozenFile) -> ResumePoint:
    found = make_checkpoint(store, folder / "save", step=10, fence=2, frozen=frozen)
    return ResumePoint(path=found.path, digest=found.digest, step=10)


def test_a_restore_takes_both_parts_and_nothing_of_a_part_that_was_changed(
    store: LocalStore, frozen: FrozenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "PAUSES_SECONDS", ())
    point, model = point_of(store, tmp_path, frozen), Small()
    load_weights(store, point, model)
    assert torch.equal(model.embeddings, torch.arange(12.0).view(3, 4)) and bool((model.weight == 10).all())
    path = store.fetch(frozen.key)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptObjectError, match=f"{frozen.key} was changed after it was written"):
        load_weights(store, point, Small())


def test_a_checkpoint_that_names_no_such_weights_is_not_of_this_model(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleRunError, match=r"embeddings: nothing in the checkpoint"):
        load_weights(store, point_of(store, tmp_path), Small())


def test_a_model_that_trains_other_weights_than_when_the_run_began_does_not_begin(
    store: LocalStore, frozen: FrozenFile
) -> None:
    folder, _, name = frozen.key.rpartition("/")
    copy: dict[str, Any] = {"source": "embeddings", "target": "embeddings", "axis": None, "from": [], "to": []}
    plan = canonical_json({"files": {name: frozen.sha256}, "copies": [copy]})
    store.write(f"{folder}/{START_NAME}", plan)
    start, model = StartPoint(path=folder, digest=sha256_of_bytes(plan), frozen=[frozen]), Small()
    take_first_weights(model, store, start)
    assert torch.equal(model.embeddings, torch.arange(12.0).view(3, 4))
    with pytest.raises(IncompatibleRunError, match="The first that differs is embeddings, of 1"):
        take_first_weights(Small(trains_embeddings=True), store, start)
