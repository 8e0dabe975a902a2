"""Why a segment failed, in words that say what happened."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.holders import find_process
from storage.runs.kept_outcomes import Launch, settle_outcome
from storage.runs.segments import find_outcome
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.configuration import DivergenceConfig
from training.metrics.curve import LossCurve
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.outcome import Ending, describe_failure
from training.spec import SegmentSpec
from training.world import World

OF_GLOO = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:3503: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)


def test_a_broken_connection_is_told_as_one_with_the_address_of_the_other_side() -> None:
    told = describe_failure(OF_GLOO)
    assert told.startswith("the connection to another rank broke: ")
    assert "[10.0.0.2]:3503: Connection reset by peer" in told and "typically" not in told


def test_any_other_error_is_told_as_it_is() -> None:
    assert describe_failure(ValueError("no such column")) == "ValueError: no such column"


def test_a_rank_is_named_with_its_machine_where_there_are_several() -> None:
    assert World(3, 4, 3, 4).label == "rank 3"
    assert World(3, 4, 1, 2).label == f"rank 3 on {socket.gethostname()}"


class StoreAway(LocalStore):
    """Takes no outcome while it is away."""

    is_away = True

    def write_if_absent(self, key: str, data: bytes) -> None:
        if self.is_away and key.endswith("outcome.json"):
            raise StoreUnavailableError("no answer")
        super().write_if_absent(key, data)


def ending_of(store: LocalStore, folder: Path) -> tuple[SegmentSpec, Ending]:
    """Of a rank that is alone, without an agent."""
    dataset = publish_small_dataset(store, folder / "work", rows=20)
    spec, world = make_spec(store, dataset, folder / "scratch", fence=2), World(0, 1, 0, 1)
    state = TrainingState(LossCurve(1, DivergenceConfig()))
    return spec, Ending(spec, world, store, Reporter(spec.progress_file, world, batch_size=8), state, age_seconds=0)


def test_an_outcome_that_the_store_does_not_take_is_kept_and_is_not_that_the_store_was_away(tmp_path: Path) -> None:
    store = StoreAway(tmp_path / "store")
    spec, ending = ending_of(store, tmp_path)
    with pytest.raises(StoreUnavailableError), ending.failures_written():
        ending.write("preempted", "asked to stop by a signal")
    supervisor = find_process(os.getppid())
    assert supervisor is not None
    store.is_away = False
    launch = Launch(store=store.address, run=spec.run, fence=2, supervisor=supervisor)
    kept = settle_outcome(store, spec.scratch_folder, launch)
    assert kept is not None and (kept.outcome, kept.cause) == ("preempted", "asked to stop by a signal")


def test_where_no_outcome_can_be_kept_the_store_has_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    spec, ending = ending_of(store, tmp_path)
    shutil.rmtree(spec.scratch_folder)
    ending.write("preempted", "asked to stop by a signal")
    found = find_outcome(store, spec.run, 2)
    assert found is not None and found.outcome == "preempted"
