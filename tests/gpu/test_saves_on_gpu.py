"""On a GPU the copy for a checkpoint is made beside the next step, and is the state before it all the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import train_segment
from tests.helpers.runs import find_complete_checkpoints
from tests.helpers.training import make_spec, read_log, train_forked, train_to_end
from training.checkpointing.host_memory import HostMemory
from training.spec import SegmentSpec
from training.world import World


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_copied_beside_training_is_the_state_at_the_step_boundary(
    ranks: int, device: torch.device, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    train: dict[str, Any] = {"device": device.type, "ranks": ranks, "share_gpus": ranks > 1}
    train |= {"steps": 200, "every_steps": 1}
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


@pytest.mark.parametrize("num_bytes", [8, 4096, 3 * 2**20 + 17])
def test_memory_for_a_file_is_page_locked_without_being_any_larger_and_takes_a_copy(
    num_bytes: int, gpu: torch.device
) -> None:
    memory = HostMemory(num_bytes, page_locked=True)
    assert memory.data.is_pinned() and memory.data.untyped_storage().nbytes() == num_bytes
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=gpu)
    memory.data.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(memory.data, source.cpu())
    memory.release()
    assert not memory.data.is_pinned()


def with_contexts_noted(spec: SegmentSpec, world: World) -> Any:
    """Train, and write down on which GPUs this rank has a context then."""
    segment = train_segment(spec, world)
    has_context = torch._C._cuda_hasPrimaryContext  # type: ignore[attr-defined]
    found = [index for index in range(torch.cuda.device_count()) if has_context(index)]
    (spec.scratch_folder / f"contexts-{world.rank}.json").write_text(json.dumps(found))
    return segment


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_rank_that_saves_beside_training_takes_memory_on_its_own_gpu_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work")
    spec = make_spec(store, dataset, tmp_path / "two", every_steps=1, background=True, device="cuda", ranks=2)
    assert train_forked(spec, store, with_contexts_noted).outcome == "completed", read_log(spec)
    for rank in range(2):
        assert json.loads((spec.scratch_folder / f"contexts-{rank}.json").read_text()) == [rank]
