"""On a GPU the copy for a checkpoint is made beside the next step, and is the state before it all the same."""

from pathlib import Path

import pytest
import torch

from storage.checkpoints.checkpoints import find_complete_checkpoints, verify_checkpoint
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec, read_log, train_to_end

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_copied_beside_training_is_the_state_at_the_step_boundary(ranks: int, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    train = {"device": "cuda", "ranks": ranks, "share_gpus": ranks > 1, "steps": 200, "every_steps": 1}
    found = []
    for fence, background in ((2, False), (3, True)):
        spec = make_spec(store, dataset, tmp_path / f"{fence}", fence=fence, background=background, **train)
        assert train_to_end(spec, store).outcome == "completed", read_log(spec)
        found.append({c.index.step: c for c in find_complete_checkpoints(store, spec.run, fence)})
    waiting, beside = found
    assert len(waiting) == 200 and len(beside) > 3
    for step, checkpoint in beside.items():
        verify_checkpoint(store, checkpoint.path, checkpoint.digest)
        assert checkpoint.index.files == waiting[step].index.files, f"step {step}"
