"""What lies far back in a run is written once, and nothing that is written again and again grows with the run."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.history import read_whole_history
from storage.errors import CorruptManifestError, ObjectUnreadableError
from storage.objects.history import seal_history, walk_history
from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.earlier_segments import SEGMENTS_IN_PART
from storage.runs.manifest import Manifest
from storage.runs.run_state import SegmentRecord
from storage.runs.transitions import end_segment, reconfigure
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.runs import lease_run, make_run

# What is inline before a part is made.
MOST_INLINE = 2 * SEGMENTS_IN_PART - 1
SHORT, LONG, LONGEST = MOST_INLINE, 2 * MOST_INLINE, 200
OpenAfter = Callable[[int], LocalStore]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One run, copied when it had so many segments."""
    folder = tmp_path_factory.mktemp("stages")
    manifest, found = make_run(LocalStore(folder / "growing")), dict[int, Path]()
    for before, num_segments in ((0, SHORT), (SHORT, LONG), (LONG, LONGEST)):
        interrupt(manifest, num_segments - before)
        found[num_segments] = Path(shutil.copytree(folder / "growing", folder / str(num_segments)))
    return found


@pytest.fixture
def open_after(stages: dict[int, Path], tmp_path: Path) -> OpenAfter:
    """A store of one's own, with that run as it was after so many segments."""
    return lambda num_segments: LocalStore(Path(shutil.copytree(stages[num_segments], tmp_path / "store")))


def ended(fence: int, **changed: Any) -> SegmentRecord:
    record = {"fence": fence, "outcome": "preempted", "cause": "SIGTERM", "first_step": 10 * fence, "seconds": 0.1}
    record |= {
        "last_step": 10 * fence + 9,
        "world_size": 1,
        "planned_steps": 9000,
        "started_at": fence / 3,
        "steps_lost": 0,
        "phases": {},
    }
    return SegmentRecord.model_validate(record | changed)


def interrupt(manifest: Manifest, times: int) -> None:
    for _ in range(times):
        manifest.commit("ended", end_segment(ended(lease_run(manifest))))


def inline_segments(store: LocalStore) -> list[int]:
    """How many segments each generation has in itself."""
    keys = store.list_keys("runs/run/manifest/")
    return [len(json.loads(store.read(key))["state"]["segments"]) for key in keys]


def test_generations_do_not_grow_with_the_number_of_segments_and_none_is_lost(open_after: OpenAfter) -> None:
    store = open_after(LONGEST)
    segments = Manifest(store, "run").load_head().state.segments
    assert [segment.fence for segment in segments] == list(range(2, 402, 2))
    assert segments == [ended(fence) for fence in range(2, 402, 2)]
    assert max(inline_segments(store)) == MOST_INLINE
    sizes = [len(store.read(key)) for key in store.list_keys("runs/run/manifest/")]
    assert max(sizes[200:]) < 1.1 * max(sizes[:200])
    parts = [len(store.read(key)) for key in store.list_keys("runs/run/history/")]
    assert len(parts) == 200 // SEGMENTS_IN_PART - 1
    assert max(parts) < 1.1 * min(parts)


def test_a_short_run_has_all_its_segments_in_the_generation_itself(open_after: OpenAfter) -> None:
    store = open_after(SHORT)
    assert list(store.list_keys("runs/run/history/")) == []
    assert max(inline_segments(store)) == MOST_INLINE


def test_what_is_committed_is_what_is_read_again(open_after: OpenAfter) -> None:
    store = open_after(LONG)
    given = Manifest(store, "run").commit("configured", reconfigure({"seed": 2}, 100))
    assert Manifest(LocalStore(store.root), "run").load_head() == given


@pytest.mark.parametrize("operation", ["write", "write_if_absent"])
def test_a_commit_that_is_killed_on_either_side_of_its_part_is_made_again(
    open_after: OpenAfter, operation: str
) -> None:
    store = open_after(SHORT)
    manifest = Manifest(store, "run")
    fence, before = lease_run(manifest), manifest.load_head()
    broken: Any = StoreCutOff(store, 1, ProcessGoneError(), only=operation)
    with pytest.raises(ProcessGoneError):
        Manifest(broken, "run").commit("ended", end_segment(ended(fence)))
    assert manifest.load_head() == before
    assert len(list(store.list_keys("runs/run/history/"))) == (operation == "write_if_absent")
    manifest.commit("ended", end_segment(ended(fence)))
    assert len(manifest.load_head().state.segments) == MOST_INLINE + 1
    assert len(list(store.list_keys("runs/run/history/"))) == 1


def test_of_two_writers_that_make_the_same_part_both_are_right(open_after: OpenAfter) -> None:
    manifest = Manifest(open_after(SHORT), "run")
    manifest.commit("ended", end_segment(ended(lease_run(manifest))))
    barrier = threading.Barrier(4)

    def change(number: int) -> None:
        barrier.wait()
        for step in range(5):
            manifest.commit("configured", reconfigure({"writer": number}, step + 1))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(manifest.load_head().state.segments) == MOST_INLINE + 1
    assert manifest.load_head().generation == 1 + 2 * (MOST_INLINE + 1) + 20


def test_a_record_that_is_corrected_long_after_is_kept_as_corrected(open_after: OpenAfter) -> None:
    store = open_after(LONG)
    manifest = Manifest(store, "run")
    first, *others = manifest.load_head().state.segments
    corrected = [first.model_copy(update={"steps_lost": 7}), *others]
    manifest.commit("corrected", lambda state, _: state.model_copy(update={"segments": corrected}))
    state = Manifest(LocalStore(store.root), "run").load_head().state
    assert state.segments == corrected
    assert inline_segments(store)[-1] <= MOST_INLINE


def test_a_part_that_is_damaged_or_missing_is_named_and_nothing_is_written(
    open_after: OpenAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LOOK_AGAIN_SECONDS", ())
    store = open_after(LONG)
    before = list(store.list_keys(""))
    for key in store.list_keys("runs/run/history/"):
        data = store.read(key)
        for spoiled, problem in ((data.replace(b"SIGTERM", b"SIGTERN", 1), "was changed"), (None, "is missing")):
            store.delete(key)
            if spoiled is not None:
                store.write(key, spoiled)
            with pytest.raises((CorruptManifestError, ObjectUnreadableError), match=rf"{key} {problem}"):
                interrupt(Manifest(LocalStore(store.root), "run"), 1)
        store.write(key, data)
    assert list(store.list_keys("")) == before


def test_a_chain_gives_back_what_was_put_into_it_in_order(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    part = None
    for number in range(3):
        losses = [[step, 0.5, 0.1] for step in range(10 * number, 10 * number + 10)]
        sealed = seal_history("run", "curve", {"loss": losses, "gradient_norm": [], "validation": [number]}, part)
        sealed.write(store)
        part = sealed.part
    assert part is not None
    assert len(list(walk_history(store, part))) == 3
    recent = {"loss": [[30, 0.5, 0.1]], "gradient_norm": [], "validation": [3], "earlier": part.model_dump(mode="json")}
    whole = read_whole_history(store, {"history": recent})
    assert [point[0] for point in whole["loss"]] == list(range(31))
    assert whole["validation"] == [0, 1, 2, 3]
