"""A checkpoint that somebody reads stays, whatever is promoted or pruned meanwhile; once it was read it goes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.prune import prune_run
from storage.checkpoints import reading
from storage.checkpoints.checkpoints import verify_checkpoint
from storage.checkpoints.reading import ReaderNote, find_held, holding
from storage.checkpoints.strays import delete_strays
from storage.errors import ConflictError, CorruptObjectError, ObjectUnreadableError
from storage.objects.digests import canonical_json
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import CheckpointRecord, Holder, RunState
from storage.runs.transitions import promote
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.runs import lease_run, make_checkpoint, record_of

KEEP_TWO = RetentionPolicy(newest=2)
KEY = "runs/run/readers/note.json"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of a run that keeps the checkpoints of steps 10, 20 and 30."""
    return make_kept_run(LocalStore(tmp_path / "store"), tmp_path / "files")


def of_step(step: int) -> Callable[[RunState], CheckpointRecord]:
    return lambda state: next(record for record in state.kept if record.step == step)


def oldest(state: RunState) -> CheckpointRecord:
    return state.kept[-1]


def train_on(manifest: Manifest, folder: Path, step: int) -> None:
    """Promote one more, keep two, and delete what is no longer kept, as a segment does."""
    fence = lease_run(manifest) if (lease := manifest.load_head().state.lease) is None else lease.fence
    found = make_checkpoint(manifest.store, folder / "more", step, fence, run=manifest.run)
    delete_strays(manifest.store, manifest.commit("promoted", promote(record_of(found), KEEP_TWO)))


def is_there(manifest: Manifest, record: CheckpointRecord) -> bool:
    try:
        verify_checkpoint(manifest.store, record.path, record.digest)
    except (CorruptObjectError, ObjectUnreadableError):
        return False
    return True


def test_what_a_run_in_training_drops_stays_until_it_was_read(manifest: Manifest, tmp_path: Path) -> None:
    before = manifest.load_head().generation
    with holding(manifest, of_step(10)) as (_, record):
        assert manifest.load_head().generation == before
        train_on(manifest, tmp_path, 40)
        train_on(manifest, tmp_path, 50)
        assert [kept.step for kept in manifest.load_head().state.kept] == [50, 40, 30]  # the segment began with 30
        assert is_there(manifest, record)
    train_on(manifest, tmp_path, 60)
    assert not is_there(manifest, record)
    assert list(manifest.store.list_keys("runs/run/readers/")) == []


def test_a_prune_keeps_what_is_read_and_says_so(manifest: Manifest) -> None:
    manifest.commit("configured", lambda state, _: state.model_copy(update={"config": {"checkpoint": {"keep": 2}}}))
    with holding(manifest, of_step(10)) as (_, record):
        assert "being read" in prune_run(manifest.store, "run")["kept"][-1]["reason"]
        assert is_there(manifest, record)


def test_one_that_is_dropped_as_it_is_chosen_is_chosen_anew(manifest: Manifest, tmp_path: Path) -> None:
    chosen = []

    def choose(state: RunState) -> CheckpointRecord:
        chosen.append(oldest(state).step)
        record = oldest(state)
        if len(chosen) == 1:
            train_on(manifest, tmp_path, 40)
        return record

    with holding(manifest, choose) as (state, record):
        assert chosen == [10, record.step]
        assert record in state.kept and is_there(manifest, record)


def test_who_never_finds_one_that_stays_is_told(manifest: Manifest, tmp_path: Path) -> None:
    first = manifest.load_head().state.kept[-1]
    train_on(manifest, tmp_path, 40)
    with pytest.raises(ConflictError, match="dropped each checkpoint"), holding(manifest, lambda _: first):
        pass
    assert find_held(manifest.store, "run") == frozenset()


@pytest.mark.parametrize("what", ["dead", "over", "damaged"])
def test_the_note_of_a_reader_that_is_gone_counts_no_more_and_is_removed(manifest: Manifest, what: str) -> None:
    living = this_process()
    holder = Holder(**living.model_dump() | {"start_ticks": living.start_ticks + 1}) if what == "dead" else living
    note = ReaderNote(path="p", holder=holder, until=0.0 if what == "over" else 1e12)
    data = canonical_json(note.model_dump(mode="json"))
    manifest.store.write(KEY, data[:-3] if what == "damaged" else data)
    assert find_held(manifest.store, "run") == frozenset()
    assert list(manifest.store.list_keys("runs/run/readers/")) == []


def test_a_reader_on_another_machine_is_believed_for_a_while(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = this_process().model_copy(update={"pid_scope": "another boot", "pid": os.getpid() + 1})
    monkeypatch.setattr(reading, "this_process", lambda: elsewhere)
    with holding(manifest, of_step(20)) as (_, record):
        assert find_held(manifest.store, "run") == {record.path}
