"""What was found of a checkpoint is read as it was written, or not at all."""

from pathlib import Path

import pytest

from storage.checkpoints.results import audit_key, evaluation_key, find_result, write_result
from storage.objects.local_store import LocalStore

RESULT = {"step": 10, "metrics": {"auc": 0.8125}}
KEY = evaluation_key("runs/run/checkpoints/step")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_what_was_written_is_found(store: LocalStore) -> None:
    assert find_result(store, KEY) is None
    write_result(store, KEY, RESULT)
    assert find_result(store, KEY) == RESULT
    assert find_result(store, audit_key("runs/run/checkpoints/step")) is None


def test_what_an_earlier_version_wrote_without_a_seal_is_found(store: LocalStore) -> None:
    store.write(KEY, b'{"metrics":{"auc":0.8125},"step":10}')
    assert find_result(store, KEY) == RESULT


def test_whatever_bit_flips_no_other_result_is_found(store: LocalStore) -> None:
    write_result(store, KEY, RESULT)
    data = store.read(KEY)
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            store.write(KEY, bytes(damaged))
            found = find_result(store, KEY)
            # In the name of the seal a bit makes one more field of it, beside what was found.
            assert found is None or {name: found[name] for name in RESULT} == RESULT
