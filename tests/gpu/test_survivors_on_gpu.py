"""On a GPU too, a rank that is killed is replaced while the other trains on, with the bits of one rank alone."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.runs.segments import find_outcome
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.rank_ends import describe_rank_ends
from tests.helpers.elastic_runs import Runs, require_the_same
from tests.helpers.survivors import GRACE_SECONDS, newest_complete, train_as_far
from tests.helpers.training import launch, read_log
from training.agents.locks import find_holders
from training.spec import SegmentSpec
from training.views.folder import ViewFolder

MANY_STEPS: dict[str, Any] = {"steps": 100_000, "every_steps": 10, "validate_every_steps": 25}


def kill(spec: SegmentSpec, rank: int) -> None:
    os.kill(next(holder.pid for holder in find_holders(spec.scratch_folder) if holder.rank == rank), signal.SIGKILL)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_replaced_while_the_other_trains_on(
    killed: int, device: torch.device, tmp_path: Path
) -> None:
    """Two ranks share the GPU through Gloo."""
    runs, settings = Runs(tmp_path), MANY_STEPS | {"device": device.type}
    spec = runs.next_spec(2, share_gpus=device.type == "cuda", **settings)
    views, is_killed = ViewFolder(spec.scratch_folder), False
    with launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            number = newest_complete(views, 2)
            if number == 0 and not is_killed:
                kill(spec, killed)
                is_killed = True
            elif number:
                ranks.stop()
    outcome = find_outcome(runs.store, spec.run, spec.fence)
    assert outcome is not None and outcome.outcome == "preempted", read_log(spec)
    assert [rank for view in outcome.views for rank in view.lost] == [killed], read_log(spec)
    assert [rank for view in outcome.views for rank in view.joined] == [killed], read_log(spec)
    assert "restore" not in outcome.phases
    found = runs.checkpoints_of(spec)
    expected = train_as_far(found[max(found)], runs, **settings)
    assert outcome.last_step in found
    for step in found:
        require_the_same(found[step], expected[step], runs)


def test_through_nccl_a_rank_that_is_killed_ends_the_segment(gpu: torch.device, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL takes one rank on a GPU, and torch finds one GPU on this machine")
    runs = Runs(tmp_path)
    spec = runs.next_spec(2, device=gpu.type, **MANY_STEPS)
    views, is_killed = ViewFolder(spec.scratch_folder), False
    with launch(spec, GRACE_SECONDS) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if not is_killed and any(runs.checkpoints_of(spec)):
                kill(spec, 1)
                is_killed = True
    assert is_killed and views.find_going(0) is None, read_log(spec)
    assert describe_rank_ends(spec.scratch_folder).cause is not None, read_log(spec)
