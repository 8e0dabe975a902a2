"""Processes that do units: what they load, and what is heard of one that is killed."""

import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from storage.errors import ObjectMissingError
from storage.objects.local_store import LocalStore
from tasks.data.units.processes import UnitProcesses
from tasks.data.units.workspace import Address
from tests.helpers.commands import find_children
from tests.helpers.parquet import text_columns, text_config, write_parquet


@pytest.fixture
def address(tmp_path: Path) -> Address:
    """A preparation that nobody has begun."""
    config = text_config(write_parquet(tmp_path / "a.parquet", text_columns(20)))
    store = LocalStore(tmp_path / "store")
    return Address(config.model_dump_json(), store.address, None, "staging", tmp_path / "scratch")


def test_a_process_loads_neither_prefect_nor_great_expectations() -> None:
    code = "import sys, tasks.data.units.processes; print(*{'prefect', 'great_expectations', 'torch'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_what_a_unit_raises_is_raised_here(address: Address) -> None:
    with UnitProcesses(1) as processes, pytest.raises(ObjectMissingError, match=r"plan\.json is missing"):
        processes.do(address, "check", 0)


def test_a_process_that_is_killed_is_an_error_and_not_waited_for(address: Address) -> None:
    with UnitProcesses(1) as processes, pytest.raises(BrokenProcessPool):
        for process in find_children("spawn_main"):
            process.kill()
        processes.do(address, "check", 0)
