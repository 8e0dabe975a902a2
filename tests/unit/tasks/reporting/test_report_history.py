"""What the report draws of a long run, whose history is in parts."""

from pathlib import Path

import pytest

from storage.objects.history import HistoryContent, HistoryPart, seal_history
from storage.objects.local_store import LocalStore
from storage.runs.retention import RetentionPolicy
from storage.runs.transitions import promote
from tasks.reporting.written import read_history
from tests.helpers.counted_requests import counting
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of


def test_a_report_begins_later_and_says_so_where_a_part_of_the_history_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path / "store")
    manifest = make_run(store)
    sealed = seal_history("run", "curve", {"loss": [[10, 0.5, 0.1]], "gradient_norm": [], "validation": []}, None)
    found = make_checkpoint(store, tmp_path, 20, lease_run(manifest), validated_step=20, history=sealed.part)
    manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=3)))
    state = manifest.load_head().state
    sealed.write(store)
    assert [point[0] for point in read_history(store, state)["loss"]] == [10]
    assert [entry["step"] for entry in read_history(store, state)["validation"]] == [20]
    store.write(sealed.part.key, b"{}")
    assert read_history(store, state)["loss"] == []
    assert [entry["step"] for entry in read_history(store, state)["validation"]] == [20]
    assert "The report's curves lack their first steps" in caplog.text and "was changed" in caplog.text


def test_parts_of_the_history_that_were_read_for_an_earlier_page_are_not_read_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    manifest, earlier = make_run(store), None
    fence = lease_run(manifest)
    for number in range(20):
        points = [[10 * number + 1, 0.5, 0.1]]
        sealed = seal_history("run", "curve", {"loss": points, "gradient_norm": [], "validation": []}, earlier)
        sealed.write(store)
        earlier = sealed.part
    known: dict[HistoryPart, HistoryContent] = {}
    for step, num_read in ((300, 20), (400, 0)):
        found = make_checkpoint(store, tmp_path, step, fence, validated_step=step, history=earlier)
        manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=3)))
        state = manifest.load_head().state
        with counting(store) as counted:
            history = read_history(store, state, known)
        assert history == read_history(store, state)
        assert [point[0] for point in history["loss"]] == list(range(1, 200, 10))
        assert counted.requests == {"read": num_read + 1}  # beside them the checkpoint's own
