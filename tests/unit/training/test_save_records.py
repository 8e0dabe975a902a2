"""What saves have left comes to a rank that joins as another one has it."""

import json
from pathlib import Path

import pytest

from storage.checkpoints.checkpoints import CheckpointFile
from storage.datasets import DatasetManifest
from storage.objects.history import seal_history
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.checkpointing.records import SaveRecords
from training.spec import SegmentSpec

PART = CheckpointFile(num_bytes=12, sha256="ab" * 32)


@pytest.fixture
def spec(store: LocalStore, tmp_path: Path) -> SegmentSpec:
    dataset: DatasetManifest = publish_small_dataset(store, tmp_path / "work", rows=20)
    return make_spec(store, dataset, tmp_path / "scratch")


def test_all_of_it_is_told_and_heard(spec: SegmentSpec) -> None:
    records, heard = SaveRecords(spec), SaveRecords(spec)
    records.ledger = records.ledger_with(5, PART)
    records.add_part(seal_history("small", "curve", {"loss": [(1, 0.5)]}, None))
    records.saved = (5, None)
    records.completed_step, records.completed_at = 4, 5
    records.count(0.25, 1.5, 1000)
    heard.load_state_dict(json.loads(json.dumps(records.state_dict())))
    assert vars(heard) == vars(records)


def test_a_part_of_the_ledger_goes_on_where_the_one_before_ends(spec: SegmentSpec) -> None:
    records = SaveRecords(spec)
    first = records.ledger_with(5, PART)
    assert first is not None and (first.first_step, first.end_step, first.sha256) == (0, 5, PART.sha256)
    records.ledger = first
    second = records.ledger_with(8, PART)
    assert second is not None and (second.first_step, second.end_step, second.fence) == (5, 8, spec.fence)
    assert records.ledger_with(5, PART) is first
