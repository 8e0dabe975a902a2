"""An outcome that the store did not take is put when somebody settles the segment, and never in place of another."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.holders import find_process, this_process
from storage.runs.kept_outcomes import KEPT_NAME, Launch, keep_outcome, settle_outcome
from storage.runs.segments import OutcomeRecord, find_outcome, write_outcome
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.holders import dead_process

RUN, FENCE = "run", 7


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "segment"
    folder.mkdir()
    return folder


def launch_in(store: LocalStore, /, **other: Any) -> Launch:
    launch = Launch(store=store.address, run=RUN, fence=FENCE, supervisor=this_process())
    return launch.model_copy(update=other)


def outcome_of(cause: str) -> OutcomeRecord:
    return OutcomeRecord(
        outcome="preempted", cause=cause, first_step=0, last_step=4, world_size=2, seconds=9, phases={}
    )


def test_what_was_kept_is_put_into_a_store_that_has_none_and_stays(store: LocalStore, folder: Path) -> None:
    launch = launch_in(store)
    assert settle_outcome(store, folder, launch) is None
    keep_outcome(folder, 1, launch, outcome_of("asked to stop"))
    for _ in range(2):
        assert settle_outcome(store, folder, launch) == outcome_of("asked to stop")
    assert find_outcome(store, RUN, FENCE) == outcome_of("asked to stop")
    assert [path.name for path in folder.iterdir()] == [KEPT_NAME]


def test_what_the_store_has_decides(store: LocalStore, folder: Path) -> None:
    keep_outcome(folder, 0, launch_in(store), outcome_of("kept"))
    write_outcome(store, RUN, FENCE, outcome_of("put by another rank"))
    assert settle_outcome(store, folder, launch_in(store)) == outcome_of("put by another rank")


@pytest.mark.parametrize(
    "other",
    [{"store": "/another"}, {"run": "another"}, {"fence": FENCE + 1}, {"supervisor": dead_process()}],
    ids=lambda other: next(iter(other)),
)
def test_what_another_launch_kept_is_not_taken_and_its_place_is(
    other: dict[str, Any], store: LocalStore, folder: Path
) -> None:
    keep_outcome(folder, 0, launch_in(store, **other), outcome_of("of another"))
    assert settle_outcome(store, folder, launch_in(store)) is None
    assert list(store.list_keys("")) == []
    for rank in (1, 0):
        keep_outcome(folder, rank, launch_in(store), outcome_of(f"of rank {rank}"))
    assert settle_outcome(store, folder, launch_in(store)) == outcome_of("of rank 1")


def test_a_record_that_was_cut_short_is_none(store: LocalStore, folder: Path) -> None:
    keep_outcome(folder, 0, launch_in(store), outcome_of("whole"))
    whole = (folder / KEPT_NAME).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / KEPT_NAME).write_bytes(whole[:length])
        assert settle_outcome(store, folder, launch_in(store)) is None
    keep_outcome(folder, 0, launch_in(store), outcome_of("again"))
    assert settle_outcome(store, folder, launch_in(store)) == outcome_of("again")


def test_settling_that_is_killed_at_any_operation_is_finished_by_the_next_one(tmp_path: Path, folder: Path) -> None:
    for at in itertools.count(1):
        store = LocalStore(tmp_path / f"store-{at}")
        keep_outcome(folder, 0, launch_in(store), outcome_of("kept"))
        try:
            settle_outcome(StoreCutOff(store, at, ProcessGoneError()), folder, launch_in(store))
        except ProcessGoneError:
            assert settle_outcome(store, folder, launch_in(store)) == outcome_of("kept")
        else:
            break
    assert at > 3


def test_a_process_that_has_ended_is_no_holder() -> None:
    assert find_process(this_process().pid) == this_process()
    assert find_process(2**22 + 1) is None  # above the greatest number that Linux gives
