"""All kinds of units, and how one is done.

Invariant: a unit is a function of the workspace and its number. What it leaves is kept in the staging area in one
way, in whichever process, and only then is it done.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tasks.data.units.assigning import assign
from tasks.data.units.checking import check
from tasks.data.units.reading import read
from tasks.data.units.records import unit_name
from tasks.data.units.sharding import write_shards
from tasks.data.units.staging import Record
from tasks.data.units.texts import choose_texts
from tasks.data.units.workspace import Address, Workspace, close_workspaces, open_workspace

Value = TypeVar("Value")
Unit = Callable[[Workspace, int, Path], tuple[Record, dict[str, Path]]]
STAGES: dict[str, Unit] = {"read": read, "check": check, "texts": choose_texts, "assign": assign, "shard": write_shards}


class Engine(Protocol):
    """Who does the units."""

    def attend(self, prepare: Callable[[], Value]) -> Value:
        """Call `prepare`, with those who do its units at hand as long as it takes."""

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        """Do units of one stage, in any order and anywhere, and report each that is done.

        Raises what the first one that fails raises.
        """


def do_unit(workspace: Workspace, stage: str, index: int) -> None:
    """Do a unit and keep what it leaves, unless that is kept.

    Dask asks again for all that a worker did that is gone, as long as the units' futures are held.
    """
    if workspace.staging.find(unit_name(stage, index)) is not None:
        return
    with tempfile.TemporaryDirectory(dir=workspace.folder) as folder:
        record, files = STAGES[stage](workspace, index, Path(folder))
        workspace.staging.keep(unit_name(stage, index), record, files)


def do_unit_at(address: Address, stage: str, index: int) -> None:
    """Do a unit in a process that knows no more than where things are."""
    do_unit(open_workspace(address, is_read=stage != "read"), stage, index)


class OneByOne:
    """The `Engine` that is this process."""

    def attend(self, prepare: Callable[[], Value]) -> Value:
        try:
            return prepare()
        finally:
            close_workspaces()

    def run(self, address: Address, stage: str, indices: Sequence[int], on_done: Callable[[], None]) -> None:
        for index in indices:
            do_unit_at(address, stage, index)
            on_done()
