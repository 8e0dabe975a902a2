"""Verdicts over a bucket: a missing object is passed over, changed bytes are damage, as over a folder."""

from pathlib import Path

import pytest

from storage.checkpoints.checkpoints import STATE_NAME
from storage.runs.rollbacks.quarantine import has_lost_all
from tasks.verification.quarantine import fall_back_to_valid
from tasks.verification.verdicts import VerdictMaker
from tests.helpers.runs import QUICK
from tests.helpers.s3_server import open_s3_store, use_s3
from tests.unit.tasks.verification.test_verdicts import keep_checkpoints, run_paths_of


def test_verdicts_over_a_bucket_are_those_over_a_folder(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    store = open_s3_store(tmp_path / "cache")
    kept = keep_checkpoints(store, tmp_path, 10, 20)
    store.delete(f"{kept[0].path}/{STATE_NAME}")
    state = fall_back_to_valid(run_paths_of(store, tmp_path), VerdictMaker(QUICK))
    assert [(record.step, record.verdict) for record in state.quarantined] == [(20, "unreadable")]
    data = store.read(f"{kept[1].path}/{STATE_NAME}")
    store.write(f"{kept[1].path}/{STATE_NAME}", data[:-1] + b"x")
    state = fall_back_to_valid(run_paths_of(store, tmp_path), VerdictMaker(QUICK))
    assert [record.verdict for record in state.quarantined] == ["unreadable", "damaged"]
    assert has_lost_all(state)
