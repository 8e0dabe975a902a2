"""The unit `read`: a file that is not Parquet is made that, once for all that follows."""

from pathlib import Path

from tasks.data.readers.conversion import convert_file
from tasks.data.units.records import hashes_of
from tasks.data.units.staging import Record
from tasks.data.units.workspace import Workspace, read_name

TIMES = "times"


def read(workspace: Workspace, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Read a file. Raises `ContractError` for what cannot be read."""
    num_bytes = [max(1, file.num_bytes) for file in workspace.files]

    def show(position: int) -> None:
        if workspace.on_progress is not None:
            workspace.on_progress("read", min(1.0, (sum(num_bytes[:index]) + position) / sum(num_bytes)))

    path = folder / read_name(index)
    times = convert_file(workspace.files[index], workspace.config, path, show)
    files = {read_name(index): path}
    return {TIMES: times, **hashes_of(files)}, files
