"""A store that has no room for one checkpoint ends a run before its first step, and no run that goes on."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.processes import train_segment
from tests.helpers.runs import find_complete_checkpoints
from tests.helpers.training import make_spec, read_log, train_forked
from training.spec import SegmentSpec
from training.world import World


def with_little_room(spec: SegmentSpec, world: World) -> Any:
    """On a file system that says that it has 500 bytes left."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(total=10_000, free=500))
        return train_segment(spec, world)


def test_the_need_is_told_before_the_first_step_and_a_run_that_goes_on_is_not_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    dataset = publish_small_dataset(store, tmp_path / "work", rows=100)
    begun = make_spec(store, dataset, tmp_path / "refused", fence=2)
    refused = train_forked(begun, store, with_little_room)
    assert (refused.outcome, refused.is_final, refused.last_step) == ("failed", True, 0), read_log(begun)
    assert "has 500 bytes free, and one checkpoint takes at least" in refused.cause
    first = make_spec(store, dataset, tmp_path / "first", fence=4, steps=7)
    assert train_forked(first, store).outcome == "completed", read_log(first)
    found = find_complete_checkpoints(store, "small", 4)[0]
    resumed = make_spec(store, dataset, tmp_path / "resumed", fence=6, resume=found, steps=9)
    assert train_forked(resumed, store, with_little_room).outcome == "completed", read_log(resumed)
